// What the levels of a policy select for a problem.
#pragma once

#include <c10/util/ArrayRef.h>

#include <string>

#include "core/policy/policy.h"

namespace torch_cudnn_ext {

struct Selected {
  const Selection* selection = nullptr;  // nullptr: no level selects
  const Policy* level = nullptr;         // the one that selects
  std::string error;
};

// The selection of the strongest level that has one for this problem or for a problem that shares
// its algorithm; the strongest level comes first. The selection of the call, or else of a rule, for
// one of these problems holds for all of them, even if weaker levels select something else for the
// others. It is an error if one level selects differently for problems that share an algorithm.
Selected selection_of(const Problem& problem, c10::ArrayRef<const Policy*> levels);

}  // namespace torch_cudnn_ext
