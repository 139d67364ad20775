// What the tuning table and the store know that serves a problem: its own ranking, one under
// constraints that admit more, or that of a similar problem.
#pragma once

#include <optional>
#include <string>

#include "core/select/decision_record.h"
#include "core/tune/tuning_table.h"

namespace torch_cudnn_ext {

TableKey key_of(const Request& request);

// The ranking of the problem. One of another device or under other constraints holds something that
// the constraints admit, and what they exclude comes last.
std::optional<KnownRanking> known_ranking(const Request& request);

// The same, of the problem whose batch and images are nearest in size, and which is equal in all
// else. `problem` gets its text.
std::optional<KnownRanking> nearest_ranking(const Request& request, std::string& problem);

}  // namespace torch_cudnn_ext
