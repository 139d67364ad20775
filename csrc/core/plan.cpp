#include "core/plan.h"

#include <ATen/ops/empty_strided.h>
#include <c10/util/StringUtil.h>

#include <iterator>
#include <mutex>
#include <set>

#include "core/base/enum_text.h"
#include "core/tensors.h"

namespace torch_cudnn_ext {

namespace {

constexpr EnumName<Note> kNotes[] = {{Note::tensor_core, "tensor_core"},
                                     {Note::tf32, "tf32"},
                                     {Note::down_convert, "down_convert"},
                                     {Note::reduced_range, "reduced_range"},
                                     {Note::low_accuracy, "low_accuracy"},
                                     {Note::fft, "fft"},
                                     {Note::winograd, "winograd"},
                                     {Note::nondeterministic, "nondeterministic"},
                                     {Note::runtime_compilation, "runtime_compilation"},
                                     {Note::fused, "fused"}};
static_assert(std::size(kNotes) == static_cast<size_t>(Note::kCount));

}  // namespace

std::string memory_text(const std::optional<int64_t>& bytes) {
  return bytes ? c10::str(*bytes, " bytes") : std::string("unknown");
}

void retain_until_exit(std::shared_ptr<const void> object) {
  static auto* mutex = new std::mutex();
  static auto* kept = new std::set<std::shared_ptr<const void>>();
  std::lock_guard<std::mutex> lock(*mutex);
  kept->insert(std::move(object));
}

void retain_for_graph(const std::shared_ptr<Plan>& plan, const Device& device) {
  if (!plan->notes.has(Note::runtime_compilation)) return;
  if (runtime_of(device).is_capturing(device)) retain_until_exit(plan);
}

void give(Bindings& bindings, Role role, const TensorSpec& spec, const at::Tensor& result) {
  at::Tensor& out = bindings[role];
  if (out.defined()) {
    out.copy_(result);
    return;
  }
  bool as_specified = result.scalar_type() == spec.dtype;
  c10::IntArrayRef strides = result.strides();
  for (int i = 0; i < spec.sizes.size(); ++i) {
    as_specified &= spec.sizes[i] <= 1 || strides[i] == spec.strides[i];
  }
  // The sizes are those of the result: packed sequences have fewer rows than specified.
  if (!as_specified) {
    out = at::empty_strided(result.sizes(), spec.strides, result.options().dtype(spec.dtype))
              .copy_(result);
  } else {  // the strides of dimensions of size 1 may differ
    bool same_strides = strides == c10::IntArrayRef(spec.strides);
    out = same_strides ? result : strided_view(result, result.sizes(), spec.strides);
  }
}

at::Tensor& output_tensor(Bindings& bindings, Role role, const TensorSpec& spec,
                          const at::Tensor& like) {
  at::Tensor& out = bindings[role];
  if (!out.defined()) {
    out = at::empty_strided(spec.sizes, spec.strides, like.options().dtype(spec.dtype));
  }
  return out;
}

std::vector<std::string> Notes::texts() const {
  std::vector<std::string> out;
  for (const auto& name : kNotes) {
    if (has(name.value)) out.emplace_back(name.text);
  }
  return out;
}

Notes notes_from_texts(const std::vector<std::string>& texts) {
  Notes notes;
  for (const std::string& text : texts) notes.add(enum_value(kNotes, "note", text));
  return notes;
}

}  // namespace torch_cudnn_ext
