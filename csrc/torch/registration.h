// What follows from the operators' schemas alone, once all of them are defined.
#pragma once

namespace torch_cudnn_ext {

// Registers kernels for tensors that are negated or conjugated lazily, of all operators that write
// into an argument. Called once, when the library is loaded: the schemas are defined in several
// files, and these in no certain order.
void register_kernels_of_writers();

}  // namespace torch_cudnn_ext
