#include "python/conversions.h"

namespace py = pybind11;

namespace torch_cudnn_ext {
namespace {

std::optional<bool> deterministic_of(const Measurement& m) {
  if (m.status == Measurement::Status::unsupported ||
      m.status == Measurement::Status::needs_driver) {
    return std::nullopt;
  }
  return !m.notes.has(Note::nondeterministic);
}

py::dict measurement_dict(const Measurement& m) {
  py::dict d = candidate_dict(m);
  d["median_ms"] = object_of(m.median_ms);
  d["spread_ms"] = object_of(m.spread_ms);
  d["host_ms"] = object_of(m.host_ms);
  d["samples"] = m.samples;
  d["error"] = object_of(m.error);
  d["build_ms"] = m.build_ms;
  d["clock_low_mhz"] = object_of(m.clock_low_mhz);
  d["clock_high_mhz"] = object_of(m.clock_high_mhz);
  d["throttled"] = m.throttled;
  d["energy_mj"] = object_of(m.energy_mj);
  d["energy_spread_mj"] = object_of(m.energy_spread_mj);
  return d;
}

}  // namespace

py::dict candidate_dict(const Measurement& m) {
  py::dict d;
  d["algorithm"] = m.algorithm.text();
  d["backend"] = m.algorithm.backend;
  d["status"] = status_text(m.status);
  d["reason"] = m.reason;
  d["workspace_bytes"] = object_of(m.workspace_bytes);
  d["notes"] = m.notes.texts();
  d["deterministic"] = object_of(deterministic_of(m));
  d["source"] = m.source;
  return d;
}

py::list ranking(const std::vector<Measurement>& measurements) {
  py::list out;
  for (const Measurement& m : measurements) out.append(measurement_dict(m));
  return out;
}

Measurement measurement_from(const py::dict& d) {
  Measurement m;
  m.algorithm = parse_algorithm(field<std::string>(d, "algorithm"));
  m.status = status_from_text(field<std::string>(d, "status"));
  m.reason = field<std::string>(d, "reason");
  m.workspace_bytes = field<std::optional<int64_t>>(d, "workspace_bytes");
  m.notes = notes_from_texts(field<std::vector<std::string>>(d, "notes"));
  m.source = field<std::string>(d, "source");
  m.median_ms = field<std::optional<double>>(d, "median_ms");
  m.spread_ms = field<std::optional<double>>(d, "spread_ms");
  m.samples = field<int64_t>(d, "samples");
  m.error = field<std::optional<double>>(d, "error");
  m.build_ms = field<double>(d, "build_ms");
  // Files of earlier versions lack some, and none has what is not known.
  auto read = [&](auto& value, const char* name) {
    if (d.contains(name)) value = field<std::decay_t<decltype(value)>>(d, name);
  };
  read(m.host_ms, "host_ms");
  read(m.clock_low_mhz, "clock_low_mhz");
  read(m.clock_high_mhz, "clock_high_mhz");
  read(m.throttled, "throttled");
  read(m.energy_mj, "energy_mj");
  read(m.energy_spread_mj, "energy_spread_mj");
  bool timed = m.status != Measurement::Status::ok || m.median_ms.has_value();
  TORCH_CHECK_VALUE(timed, "median_ms of ", m.algorithm.text(),
                    " is null, wanted a time: it is ok");
  return m;
}

py::dict entry_dict(const TableEntry& entry) {
  py::dict d;
  d["problem"] = entry.problem;
  d["device"] = entry.device;
  d["constraints"] = entry.constraints;
  d["measurements"] = ranking(entry.measurements);
  return d;
}

py::dict decision_dict(const DecisionRecord& r) {
  py::dict d;
  d["op"] = r.op;
  d["problem"] = r.problem;
  d["algorithm"] = r.algorithm;
  d["why"] = r.why;
  d["workspace_bytes"] = object_of(r.workspace_bytes);
  d["decision_ms"] = r.decision_ms;
  d["device"] = r.device;
  d["policy"] = r.policy;
  return d;
}

}  // namespace torch_cudnn_ext
