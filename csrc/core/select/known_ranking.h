// What the tuning table and the store know that serves a problem. That is its own ranking, its
// ranking under constraints that admit more, or the ranking of a similar problem.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/select/decision_record.h"
#include "core/tune/tuning_table.h"

namespace torch_cudnn_ext {

TableKey key_of(const Request& request);

// The ranking of the problem. One of another device or under other constraints holds something that
// the constraints admit, and what they exclude comes last.
std::optional<KnownRanking> known_ranking(const Request& request);

// What holds of a ranking under the constraints of the request, as above.
std::optional<KnownRanking> admitted_ranking(KnownRanking known, const Request& request);

// Rankings of problems that differ in the sizes of batch and space alone, by problem, the nearest
// first. Not more than three.
std::vector<std::pair<std::string, KnownRanking>> nearest_rankings(const Request& request);

}  // namespace torch_cudnn_ext
