#include "core/writer.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <functional>
#include <mutex>
#include <unordered_map>

namespace torch_cudnn_ext {

namespace {

struct Known {
  std::mutex mutex;
  std::unordered_map<int64_t, std::string> policies;  // by number; never erased
};
Known& known() {
  static auto* made = new Known();
  return *made;
}

// Few enough that strides and bytes computed from these sizes do not overflow.
constexpr int64_t kWriterNumbers = INT64_C(1) << 48;

}  // namespace

int64_t writer_number(const std::string& policy) {
  // The hash is the same in all processes. If another policy has the number, the next one is tried.
  auto number = static_cast<int64_t>(std::hash<std::string>{}(policy) % kWriterNumbers);
  std::lock_guard<std::mutex> lock(known().mutex);
  while (true) {
    number = std::max<int64_t>(number, 1);
    const std::string& entry = known().policies.try_emplace(number, policy).first->second;
    if (entry == policy) return number;
    number = (number + 1) % kWriterNumbers;
  }
}

at::Tensor make_writer(int64_t number, const at::Tensor& like) {
  return at::empty({0, number}, like.options().dtype(at::kByte));
}

std::optional<std::string_view> policy_of_writer(std::string_view op, const at::Tensor& writer) {
  bool is_writer = writer.dim() == 2 && writer.sym_size(0) == 0;
  TORCH_CHECK_VALUE(is_writer, "torch_cudnn_ext::", op, ": writer has sizes ", writer.sym_sizes(),
                    ", wanted [0, number], as the forward gave it");
  int64_t number = writer.sym_size(1).guard_int(__FILE__, __LINE__);
  if (number == 0) return std::nullopt;
  std::lock_guard<std::mutex> lock(known().mutex);
  auto found = known().policies.find(number);
  TORCH_CHECK_VALUE(found != known().policies.end(), "torch_cudnn_ext::", op, ": writer has sizes ",
                    writer.sym_sizes(),
                    ", which names no algorithm that ran in this process, wanted the one that the "
                    "forward gave");
  return found->second;
}

}  // namespace torch_cudnn_ext
