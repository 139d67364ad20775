#include "core/operator.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

namespace torch_cudnn_ext {

namespace {

std::vector<std::unique_ptr<Operator>>& operators() {
  static auto* list = new std::vector<std::unique_ptr<Operator>>();
  return *list;
}

}  // namespace

const Operator& find_operator(std::string_view family) {
  for (const auto& op : operators()) {
    if (op->family() == family) return *op;
  }
  std::string known;
  for (const auto& op : operators()) known += c10::str(known.empty() ? "" : ", ", op->family());
  TORCH_CHECK_VALUE(false, "operator family is '", family, "', wanted one of ", known);
}

std::pair<const Operator*, std::string> find_pass(const std::string& op) {
  std::string known;
  for (const auto& family : operators()) {
    for (const std::string& pass : family->passes()) {
      std::string name = c10::str(family->family(), "_", pass);
      if (name == op) return {family.get(), pass};
      known += c10::str(known.empty() ? "" : ", ", name);
    }
  }
  TORCH_CHECK_VALUE(false, "op is '", op, "', wanted one of ", known);
}

const Operator& operator_of(const Problem& problem) { return find_operator(family_of(problem)); }

std::vector<const Operator*> all_operators() {
  std::vector<const Operator*> list;
  for (const auto& op : operators()) list.push_back(op.get());
  return list;
}

void register_operator(std::unique_ptr<Operator> op) { operators().push_back(std::move(op)); }

}  // namespace torch_cudnn_ext
