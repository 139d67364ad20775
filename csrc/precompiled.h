// The headers of PyTorch that most files include: setup.py compiles them once, for GCC, and puts
// them before every file. No file may rely on that; each includes what it uses.
#pragma once

#include <ATen/ATen.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <torch/csrc/autograd/VariableTypeUtils.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/dynamo/compiled_autograd.h>
#include <torch/library.h>
