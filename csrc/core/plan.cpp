#include "core/plan.h"

#include <ATen/ops/empty_strided.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <mutex>
#include <set>

namespace torch_cudnn_ext {

namespace {

constexpr const char* kRoles[] = {"x",
                                  "w",
                                  "y",
                                  "bias",
                                  "z",
                                  "dx",
                                  "dw",
                                  "dy",
                                  "dbias",
                                  "dz",
                                  "mean",
                                  "invstd",
                                  "running_mean",
                                  "running_var",
                                  "hx",
                                  "cx",
                                  "hy",
                                  "cy",
                                  "dhx",
                                  "dcx",
                                  "dhy",
                                  "dcy",
                                  "batch_sizes",
                                  "reserve",
                                  "indices",
                                  "grid",
                                  "dgrid",
                                  "targets",
                                  "input_lengths",
                                  "target_lengths"};
static_assert(std::size(kRoles) == static_cast<size_t>(Role::kCount));
constexpr const char* kNotes[] = {"tensor_core",         "tf32", "down_convert", "reduced_range",
                                  "low_accuracy",        "fft",  "winograd",     "nondeterministic",
                                  "runtime_compilation", "fused"};

template <class Enum, size_t Count>
Enum from_text(const char* what, const char* const (&texts)[Count], const std::string& text) {
  for (size_t i = 0; i < Count; ++i) {
    if (text == texts[i]) return static_cast<Enum>(i);
  }
  TORCH_CHECK_VALUE(false, what, " is '", text, "', wanted one of ",
                    c10::Join(", ", c10::ArrayRef<const char*>(texts)));
}

}  // namespace

std::string memory_text(const std::optional<int64_t>& bytes) {
  return bytes ? c10::str(*bytes, " bytes") : std::string("unknown");
}

void keep_for_good(std::shared_ptr<const void> object) {
  static auto* mutex = new std::mutex();
  static auto* kept = new std::set<std::shared_ptr<const void>>();
  std::lock_guard<std::mutex> lock(*mutex);
  kept->insert(std::move(object));
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
  out = as_specified
            ? result
            : at::empty_strided(spec.sizes, spec.strides, result.options().dtype(spec.dtype))
                  .copy_(result);
}

at::Tensor& output_tensor(Bindings& bindings, Role role, const TensorSpec& spec,
                          const at::Tensor& like) {
  at::Tensor& out = bindings[role];
  if (!out.defined()) {
    out = at::empty_strided(spec.sizes, spec.strides, like.options().dtype(spec.dtype));
  }
  return out;
}

void add_bias(at::Tensor& result, const at::Tensor& bias) {
  Dims shape(static_cast<int>(result.dim()), 1);
  shape[1] = bias.size(0);
  result.add_(bias.view(shape));
}

const char* role_text(Role role) { return kRoles[static_cast<int>(role)]; }
Role role_from_text(const std::string& text) { return from_text<Role>("role", kRoles, text); }

std::vector<std::string> Notes::texts() const {
  std::vector<std::string> out;
  for (size_t i = 0; i < std::size(kNotes); ++i) {
    if (bits_ >> i & 1) out.emplace_back(kNotes[i]);
  }
  return out;
}

Notes notes_from_texts(const std::vector<std::string>& texts) {
  Notes notes;
  for (const std::string& text : texts) notes.add(from_text<Note>("note", kNotes, text));
  return notes;
}

}  // namespace torch_cudnn_ext
