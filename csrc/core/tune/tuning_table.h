// What was measured, kept by problem, device and constraints. In memory, shared by all threads; the
// file belongs to Python.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/plan.h"

namespace torch_cudnn_ext {

struct Measurement {
  enum class Status : uint8_t { ok, unsupported, excluded, needs_driver, failed, rejected };

  Algorithm algorithm;
  std::string source;
  Status status = Status::unsupported;
  std::string reason;                          // empty when ok
  std::optional<double> median_ms, spread_ms;  // spread: half the interquartile range
  std::optional<double> host_ms;  // the host's median for a call; none where it does the work
  int64_t samples = 0;
  std::optional<int64_t> workspace_bytes;
  Notes notes;
  std::optional<double> error;  // relative, against the float64 reference
  double build_ms = 0;
};
const char* status_text(Measurement::Status status);
Measurement::Status status_from_text(const std::string& text);  // throws ValueError

struct TableEntry {
  std::string problem, device, constraints;
  std::vector<Measurement> measurements;  // best first, then what did not run
};

namespace tuning_table {

std::optional<std::vector<Measurement>> find(const std::string& problem, const std::string& device,
                                             const std::string& constraints);
void insert(TableEntry entry);
std::vector<TableEntry> entries();
void clear();

}  // namespace tuning_table
}  // namespace torch_cudnn_ext
