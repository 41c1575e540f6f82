# Included at the head of a makefile when USE_HIP is set: this folder is the CUDA toolkit, for nvcc and for g++.
HIP_HOME := $(patsubst %/,%,$(dir $(abspath $(lastword $(MAKEFILE_LIST)))))
ifneq ($(HIP_TOOLKIT),$(HIP_HOME))
export HIP_TOOLKIT := $(HIP_HOME)
HIP_ROOT := $(shell hipconfig --path 2>/dev/null)
export PATH := $(HIP_HOME)/bin:$(PATH)
export CPATH := $(HIP_HOME)/include$(if $(HIP_ROOT),:$(HIP_ROOT)/include)$(if $(CPATH),:$(CPATH))
export LIBRARY_PATH := $(HIP_HOME)/lib64$(if $(HIP_ROOT),:$(HIP_ROOT)/lib)$(if $(LIBRARY_PATH),:$(LIBRARY_PATH))
endif
override CUDA_PATH := $(HIP_HOME)
override CUDA_HOME := $(HIP_HOME)
override NVCC := $(HIP_HOME)/bin/nvcc
export HIP_ARCHITECTURES
