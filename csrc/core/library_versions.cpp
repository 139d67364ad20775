#include "core/library_versions.h"

#include <c10/util/StringUtil.h>

#include <array>
#include <atomic>

namespace torch_cudnn_ext {

namespace {

struct LibraryVersionsEntry {
  int64_t (*version)() = nullptr;
  std::atomic<int64_t> overridden{0};
};

LibraryVersionsEntry& entry_of(Library library) {
  static auto* entries = new std::array<LibraryVersionsEntry, std::size(kLibraries)>();
  return (*entries)[static_cast<size_t>(library)];
}

}  // namespace

int64_t library_version(Library library) {
  const LibraryVersionsEntry& entry = entry_of(library);
  if (int64_t overridden = entry.overridden) return overridden;
  return entry.version == nullptr ? 0 : entry.version();
}

std::string version_text(int64_t version) {
  int64_t patch = version % 100;
  return c10::str(version / 10000, ".", version / 100 % 100,
                  patch == 0 ? "" : c10::str(".", patch));
}

bool register_library(Library library, int64_t (*version)()) {
  entry_of(library).version = version;
  return true;
}

void override_library_version(Library library, int64_t version) {
  entry_of(library).overridden = version;
}

}  // namespace torch_cudnn_ext
