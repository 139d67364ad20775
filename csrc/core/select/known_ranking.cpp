#include "core/select/known_ranking.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "core/operator.h"
#include "core/policy/policy_text.h"
#include "core/select/admit.h"
#include "core/tune/measure.h"

namespace torch_cudnn_ext {

namespace {

using Status = Measurement::Status;

// Takes what the constraints exclude out of the order, and puts it at the end.
void exclude(std::vector<Measurement>& measurements, const Request& request) {
  const auto& [problem, policy, device] = request;
  for (Measurement& m : measurements) {
    if (m.status != Status::ok && m.status != Status::unstable) continue;
    std::string reason = exclusion_by_backend(m.algorithm.backend, policy, device);
    if (reason.empty()) reason = exclusion_by_notes(m.notes, policy);
    if (reason.empty()) {
      reason = exclusion_by_workspace(m.workspace_bytes.value_or(0), policy, device);
    }
    m.exclude_if(reason);
  }
  std::stable_partition(measurements.begin(), measurements.end(),
                        [](const Measurement& m) { return m.status != Status::excluded; });
}

bool was_not_tried(const Measurement& m) {
  return m.reason.rfind(kLeftOut, 0) == 0 || m.reason.rfind(kOutOfTime, 0) == 0;
}

// The table's ranking under constraints that admit more.
std::optional<KnownRanking> ranking_under_others(const TableKey& key, const Request& request) {
  const std::string family = family_of(request.problem);
  const Policy asked = parse_policy(key.constraints, family);
  for (TableEntry& entry : tuning_table::entries_of(key.problem, key.device)) {
    if (!parse_policy(entry.constraints, family).admits_all_of(asked)) continue;
    std::string under = entry.constraints.empty() ? "no constraints" : entry.constraints;
    return KnownRanking{std::move(entry.measurements), "", under, ""};
  }
  return std::nullopt;
}

// A problem's text without the sizes of its batch and images, and these sizes.
struct Shape {
  std::string rest;
  std::vector<double> sizes;
};
Shape shape_of(const Problem& problem) {
  std::vector<std::string> fields;
  for (const BatchSize& each : operator_of(problem).batch_sizes()) fields.push_back(each.field);
  Shape shape;
  std::string text = problem_text(problem);
  for (size_t begin = 0; begin < text.size();) {
    size_t end = std::min(text.find(' ', begin), text.size());
    std::string token = text.substr(begin, end - begin);
    begin = end + 1;
    size_t open = token.find('['), close = token.find(']');
    bool is_image =
        close != std::string::npos &&
        std::find(fields.begin(), fields.end(), token.substr(0, token.find('='))) != fields.end();
    if (is_image) {
      for (size_t at = open; at < close; at = std::min(token.find(',', at + 1), close)) {
        shape.sizes.push_back(std::stod(token.substr(at + 1)));
      }
      token.erase(open, close - open);
    }
    shape.rest += token + " ";
  }
  return shape;
}

// How many times larger one is than the other, in all sizes together, as a logarithm. Infinite for
// problems that differ in more.
double distance(const Shape& a, const Shape& b) {
  if (a.rest != b.rest || a.sizes.size() != b.sizes.size()) return HUGE_VAL;
  double sum = 0;
  for (size_t i = 0; i < a.sizes.size(); ++i) {
    sum += std::abs(std::log(std::max(a.sizes[i], 1.0) / std::max(b.sizes[i], 1.0)));
  }
  return sum;
}

}  // namespace

TableKey key_of(const Request& request) {
  return {problem_text(request.problem), fingerprint_of(request.device),
          request.policy.policy.constraints_text(request.problem)};
}

std::optional<KnownRanking> known_ranking(const Request& request) {
  if (!are_rankings_kept(request.policy, request.device)) return std::nullopt;
  TableKey key = key_of(request);
  auto known = tuning_table::find(key);
  bool is_own = known && known->device.empty() && known->constraints.empty();
  if (!is_own) {
    auto others = ranking_under_others(key, request);
    if (others) known = std::move(others);
  }
  if (!known || is_own || !known->heuristic.empty() || known->measurements.empty()) return known;
  std::vector<Measurement>& rows = known->measurements;
  Algorithm best = rows[0].algorithm;
  exclude(rows, request);
  // What was not tried, since the best was so much faster, may be the best of what is left.
  bool is_other =
      !(rows[0].algorithm == best) && std::any_of(rows.begin(), rows.end(), was_not_tried);
  return rows[0].status == Status::ok && !is_other ? known : std::nullopt;
}

std::optional<KnownRanking> nearest_ranking(const Request& request, std::string& problem) {
  TableKey key = key_of(request);
  Shape wanted = shape_of(request.problem);
  double least = HUGE_VAL;
  std::string op = op_of(request.problem) + " ";
  for (const std::string& text : tuning_table::problems(key.device, key.constraints)) {
    if (text.rfind(op, 0) != 0) continue;
    double away = distance(shape_of(parse_problem(text)), wanted);
    if (away < least) {
      least = away;
      problem = text;
    }
  }
  if (least == HUGE_VAL) return std::nullopt;
  return tuning_table::find({problem, key.device, key.constraints});
}

}  // namespace torch_cudnn_ext
