#include "core/select/selection.h"

#include <c10/util/StringUtil.h>

#include <vector>

#include "core/operator.h"

namespace torch_cudnn_ext {

namespace {

Selected selection_of(const Problem& problem, const std::vector<Problem>& together,
                      const Policy& level) {
  Selected found{nullptr, &level, ""};
  for (const Problem& member : together) {
    auto own = level.selections.find(op_of(member));
    if (own == level.selections.end()) continue;
    if (found.selection != nullptr && found.selection->text() != own->second.text()) {
      found.error =
          c10::str(op_of(problem), ": the policy says ", found.selection->text(), ", but ",
                   op_of(member), ", which shares its algorithm, is to run ", own->second.text(),
                   "; these passes are coupled, wanted the same for both");
      found.selection = nullptr;
      return found;
    }
    found.selection = &own->second;
  }
  return found;
}

}  // namespace

Selected selection_of(const Problem& problem, c10::ArrayRef<const Policy*> levels) {
  std::vector<Problem> together = operator_of(problem).coupled(problem);
  together.insert(together.begin(), problem);
  for (const Policy* level : levels) {
    Selected found = selection_of(problem, together, *level);
    if (found.selection != nullptr || !found.error.empty()) return found;
    if (level->fastest.value_or(false)) break;  // it is tuned
  }
  return {};
}

}  // namespace torch_cudnn_ext
