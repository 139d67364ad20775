// The versions of the libraries whose kernels run. Knows no library: whoever links one registers
// how its version is asked.
#pragma once

#include <cstdint>
#include <string>

#include "core/base/enum_text.h"

namespace torch_cudnn_ext {

enum class Library : uint8_t { cudnn, pytorch };
inline constexpr EnumName<Library> kLibraries[] = {{Library::cudnn, "cuDNN"},
                                                   {Library::pytorch, "PyTorch"}};

// 91900 is cuDNN 9.19.0, and 21100 is PyTorch 2.11.0. 0 if nobody registered the library.
int64_t library_version(Library library);
std::string version_text(int64_t version);  // "9.19", "9.28.1"

// Returns true, so that a constant at namespace scope registers it.
bool register_library(Library library, int64_t (*version)());

// For tests: the version that library_version() gives from now on; 0 gives the real one again.
void override_library_version(Library library, int64_t version);

}  // namespace torch_cudnn_ext
