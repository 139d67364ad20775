#include "torch/compiled_graphs.h"

#include <string>

#include "core/base/enum_text.h"

namespace torch_cudnn_ext {
namespace {

constexpr EnumName<CompiledUse> kCompiledUses[] = {
    {CompiledUse::conv, "conv"},
    {CompiledUse::all, "all"},
    {CompiledUse::none, "none"},
};

}  // namespace

CompiledUse compiled_use(const std::string& text) {
  return enum_value(kCompiledUses, "argument compiled", text);
}

}  // namespace torch_cudnn_ext
