#include "core/plan.h"

#include <ATen/ops/empty_strided.h>
#include <c10/util/StringUtil.h>

#include <mutex>
#include <set>

#include "core/base/enum_text.h"
#include "core/tensors.h"

namespace torch_cudnn_ext {

namespace {

constexpr EnumName<Role> kRoles[] = {{Role::x, "x"},
                                     {Role::w, "w"},
                                     {Role::y, "y"},
                                     {Role::bias, "bias"},
                                     {Role::z, "z"},
                                     {Role::dx, "dx"},
                                     {Role::dw, "dw"},
                                     {Role::dy, "dy"},
                                     {Role::dbias, "dbias"},
                                     {Role::dz, "dz"},
                                     {Role::mean, "mean"},
                                     {Role::invstd, "invstd"},
                                     {Role::running_mean, "running_mean"},
                                     {Role::running_var, "running_var"},
                                     {Role::hx, "hx"},
                                     {Role::cx, "cx"},
                                     {Role::hy, "hy"},
                                     {Role::cy, "cy"},
                                     {Role::dhx, "dhx"},
                                     {Role::dcx, "dcx"},
                                     {Role::dhy, "dhy"},
                                     {Role::dcy, "dcy"},
                                     {Role::batch_sizes, "batch_sizes"},
                                     {Role::reserve, "reserve"},
                                     {Role::indices, "indices"},
                                     {Role::grid, "grid"},
                                     {Role::dgrid, "dgrid"},
                                     {Role::targets, "targets"},
                                     {Role::input_lengths, "input_lengths"},
                                     {Role::target_lengths, "target_lengths"}};
static_assert(std::size(kRoles) == static_cast<size_t>(Role::kCount));
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
  // Sizes are the result's: of packed sequences there are fewer rows than specified.
  if (!as_specified) {
    out = at::empty_strided(result.sizes(), spec.strides, result.options().dtype(spec.dtype))
              .copy_(result);
  } else {  // but for strides that lead nowhere
    out = strides == spec.strides ? result : strided_view(result, result.sizes(), spec.strides);
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

void add_bias(at::Tensor& result, const at::Tensor& bias) {
  Dims shape(static_cast<int>(result.dim()), 1);
  shape[1] = bias.size(0);
  result.add_(bias.view(shape));
}

void add_z_and_clamp(const ConvolutionProblem& p, at::Tensor& result, const Bindings& bindings) {
  if (p.z) result.add_(bindings[Role::z]);
  if (p.activation == Activation::relu) result.relu_();
}

void add_epilogue(const ConvolutionProblem& p, at::Tensor& result, const Bindings& bindings) {
  if (p.bias) add_bias(result, bindings[Role::bias]);
  add_z_and_clamp(p, result, bindings);
}

const char* role_text(Role role) { return enum_text(kRoles, role); }
Role role_from_text(const std::string& text) { return enum_value(kRoles, "role", text); }

std::vector<std::string> Notes::texts() const {
  std::vector<std::string> out;
  for (const auto& word : kNotes) {
    if (has(word.value)) out.emplace_back(word.text);
  }
  return out;
}

Notes notes_from_texts(const std::vector<std::string>& texts) {
  Notes notes;
  for (const std::string& text : texts) notes.add(enum_value(kNotes, "note", text));
  return notes;
}

}  // namespace torch_cudnn_ext
