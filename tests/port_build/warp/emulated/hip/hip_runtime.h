#pragma once
#define HIP_INCLUDE_HIP_HIP_RUNTIME_H
#include "../lanes.h"
static const int& warpSize = lanes::wave;
