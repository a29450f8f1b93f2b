// In place of torch's file of this name, which declares all of its 2,000 functions, and which the headers of c10d include
// by way of <ATen/ATen.h>: those that c10d's headers and this binding call (up to 1.13 ATen's own headers too). Where
// this is first in the search path, AT_PER_OPERATOR_HEADERS must be defined, by which torch's other headers know to
// include what they call themselves.
#pragma once

#include <ATen/Context.h>
#include <ATen/DeviceGuard.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/alias.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/TensorOptions.h>
