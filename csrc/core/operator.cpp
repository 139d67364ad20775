#include "core/operator.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>

#include "core/base/text.h"

namespace torch_cudnn_ext {

namespace {

struct OperatorEntry {
  std::string_view family;  // points into `op`; every call compares it
  std::unique_ptr<Operator> op;
};
std::vector<OperatorEntry>& operators() {
  static auto* list = new std::vector<OperatorEntry>();
  return *list;
}

}  // namespace

double bytes_of(const std::vector<SlotSpec>& slots) {
  double bytes = 0;
  for (const SlotSpec& slot : slots) bytes += static_cast<double>(slot.spec.nbytes());
  return bytes;
}

const Operator& find_operator(std::string_view family) {
  for (const auto& entry : operators()) {
    if (entry.family == family) return *entry.op;
  }
  std::vector<std::string> known;
  for (const auto& entry : operators()) known.emplace_back(entry.family);
  TORCH_CHECK_VALUE(false, "operator family is '", family, "', ",
                    wanted_words(family, known, kInOperators));
}

std::pair<const Operator*, std::string> find_pass(const std::string& op) {
  std::vector<std::string> known;
  for (const auto& entry : operators()) {
    for (const std::string& pass : entry.op->passes()) {
      std::string name = c10::str(entry.family, "_", pass);
      if (name == op) return {entry.op.get(), pass};
      known.push_back(std::move(name));
    }
  }
  TORCH_CHECK_VALUE(false, "op is '", op, "', ", wanted_words(op, known, kInOperators));
}

const Operator& operator_of(const Problem& problem) { return find_operator(family_of(problem)); }

std::vector<const Operator*> all_operators() {
  std::vector<const Operator*> list;
  for (const auto& entry : operators()) list.push_back(entry.op.get());
  std::sort(list.begin(), list.end(), [](const Operator* a, const Operator* b) {
    return std::string_view(a->family()) < b->family();
  });
  return list;
}

void register_operator(std::unique_ptr<Operator> op) {
  std::string_view family = op->family();
  operators().push_back({family, std::move(op)});
}

}  // namespace torch_cudnn_ext
