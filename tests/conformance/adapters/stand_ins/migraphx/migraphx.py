"""A stand-in for AMD's ``migraphx`` module: its published interface, with programs that are Python functions.

A program here is made from a function over tensors; running it launches that function's torch operations
on the given stream, below torch's dispatch modes, so that nothing but the stream sees them. Everything
else has the names, the arguments and the results of src/py/migraphx_py.cpp of ROCm/AMDMIGraphX f729a52f
(version 2.16), in so far as a program that runs needs them. One difference: the real ``run`` takes any
object with the buffer protocol, this one ``argument`` alone.
"""

from __future__ import annotations

import torch
from torch.utils._python_dispatch import _disable_current_modes

__version__ = "2.16.0.dev"

_DTYPES = {
    "float": torch.float32, "half": torch.float16, "int32": torch.int32, "int64": torch.int64,
    "bool": torch.bool, "double": torch.float64, "int8": torch.int8, "uint8": torch.uint8,
}  # fmt: skip


class shape:
    class dynamic_dimension:
        def __init__(self, min=0, max=0, optimals=()):
            self.min, self.max, self.optimals = min, max, set(optimals)

    def __init__(self, **kwargs):
        self._type = kwargs.get("type", "float")
        self._dims = list(kwargs.get("dyn_dims", []))
        self._lens = list(kwargs.get("lens", [1]))

    def type(self):
        return self._type

    def type_string(self):
        return f"{self._type}_type"

    def type_size(self):
        return torch.empty((), dtype=_DTYPES[self._type], device="meta").element_size()

    def lens(self):
        if self._dims:
            raise RuntimeError("SHAPE: lens() called on a dynamic shape")
        return list(self._lens)

    def strides(self):
        return list(torch.empty(self._lens, device="meta").stride())

    def elements(self):
        return torch.Size(self._lens).numel()

    def bytes(self):
        return self.elements() * self.type_size()

    def dynamic(self):
        return bool(self._dims)

    def dyn_dims(self):
        return list(self._dims)

    def __eq__(self, other):
        return (self._type, self._lens, self._dims) == (other._type, other._lens, other._dims)

    def __repr__(self):
        return f"{self._type}_type, {{{', '.join(map(str, self._lens))}}}"


class argument:
    """Memory on the GPU, or on the host where ``_host`` holds it; ``_keeps`` owns the former, if it is ours."""

    def __init__(self, tensor):
        names = {dtype: name for name, dtype in _DTYPES.items()}
        self._host = tensor.contiguous()
        self._address, self._keeps = self._host.data_ptr(), None
        self._shape = shape(type=names[tensor.dtype], lens=list(tensor.shape))

    def get_shape(self):
        return self._shape

    def data_ptr(self):
        return self._address

    def tolist(self):
        return self._host.flatten().tolist()

    def _tensor(self):
        if self._host is not None:
            return self._host
        return _tensor_at(self._address, self._shape)

    def __eq__(self, other):
        return self._shape == other._shape and self._address == other._address


def _tensor_at(address, where):
    dtype = _DTYPES[where.type()]
    device = torch.device("cuda", torch.cuda.current_device())
    storage = torch._C._construct_storage_from_data_pointer(address, device, where.bytes())
    about = {
        "nbytes": where.bytes(),
        "data_ptr": address,
        "size": tuple(where.lens()),
        "stride": tuple(where.strides()),
    }
    about |= {"dtype": dtype, "device": device, "storage_offset": 0}
    return torch._C._construct_CUDA_Tensor_From_Storage_And_Metadata(about, storage)


def argument_from_pointer(shape, address):
    made = argument.__new__(argument)
    made._host, made._address, made._keeps, made._shape = None, address, None, shape
    return made


class target:
    def __init__(self, name):
        self.name = name


def get_target(name):
    return target(name)


class program:
    """``program(fn, parameters, outputs)`` in place of ``parse_onnx``; the rest as published.

    Args:
        fn: called with a tensor for each parameter, by name, and returns a tensor for each output.
        parameters: shapes by name.
        outputs: shapes of the results.
    """

    def __init__(self, fn, parameters, outputs, text=""):
        self._fn, self._parameters, self._outputs = fn, dict(parameters), list(outputs)
        self._text = text or getattr(fn, "__name__", "main")
        self._offload_copy = None
        self._own_stream = None

    def compile(self, t, offload_copy=True, fast_math=True, exhaustive_tune=False):
        self._offload_copy = offload_copy
        if not offload_copy:
            self._parameters |= {f"main:#output_{at}": one for at, one in enumerate(self._outputs)}

    def is_compiled(self):
        return self._offload_copy is not None

    def get_parameter_names(self):
        return sorted(self._parameters)

    def get_parameter_shapes(self):
        return dict(self._parameters)

    def get_output_shapes(self):
        return list(self._outputs)

    def run(self, params):
        if self._own_stream is None:
            self._own_stream = torch.cuda.Stream()
        # A stream of HIP's own kind, as MIGraphX makes, waits for the null stream and is waited for by it.
        self._own_stream.wait_stream(torch.cuda.current_stream())
        results = self._eval(params, self._own_stream)
        torch.cuda.current_stream().wait_stream(self._own_stream)
        return results

    def run_async(self, params, stream, stream_name):
        if stream_name != "ihipStream_t":
            raise RuntimeError(f"any_ptr: {stream_name} is not ihipStream_t")
        return self._eval(params, torch.cuda.ExternalStream(stream) if stream else torch.cuda.default_stream())

    def _eval(self, params, stream):
        for name, wanted in self._parameters.items():
            if name not in params:
                raise RuntimeError(f"Parameter not found: {name}")
            if not wanted.dynamic() and params[name].get_shape() != wanted:  # src/program.cpp checks no more either
                raise RuntimeError(f"Incorrect shape {{{params[name].get_shape()}}} for parameter: {name}")
        with torch.cuda.stream(stream), _disable_current_modes():
            tensors = {name: one._tensor() for name, one in params.items()}
            if self._offload_copy:
                tensors = {name: tensor.cuda() for name, tensor in tensors.items()}
            made = self._fn(**{name: tensor for name, tensor in tensors.items() if "#" not in name})
            if self._offload_copy:
                stream.synchronize()
                return [argument(result.cpu()) for result in made]
            for at, result in enumerate(made):
                tensors[f"main:#output_{at}"].copy_(result)
        return [params[f"main:#output_{at}"] for at in range(len(made))]

    def __eq__(self, other):
        return self is other

    __hash__ = None  # pybind11 takes it away where __eq__ is defined

    def __repr__(self):
        inputs = ", ".join(f"{name} = @param:{name} -> {one}" for name, one in sorted(self._parameters.items()))
        return f"module: main\n{inputs}\n{self._text}\n"


def allocate_gpu(s, host=False):
    made = argument_from_pointer(s, 0)
    made._keeps = torch.empty(s.lens(), dtype=_DTYPES[s.type()], device="cuda")
    made._address = made._keeps.data_ptr()
    return made


def to_gpu(arg, host=False):
    made = allocate_gpu(arg.get_shape())
    made._keeps.copy_(arg._tensor())
    torch.cuda.synchronize()
    return made


def from_gpu(arg):
    torch.cuda.synchronize()
    return argument(arg._tensor().cpu())


def gpu_sync():
    torch.cuda.synchronize()


def generate_argument(s, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return argument(torch.rand(s.lens(), generator=generator).to(_DTYPES[s.type()]))
