// What is known of the versions of cuDNN and PyTorch: errata, engine hints and what was verified.
#include "core/base/enum_text.h"
#include "core/capability.h"
#include "core/device.h"
#include "core/errata.h"
#include "core/library_versions.h"
#include "core/select/plan_store.h"
#include "cudnn/engine_hints.h"
#include "cudnn/verified.h"
#include "python/bindings.h"

namespace py = pybind11;

namespace torch_cudnn_ext {
namespace {

// A version that a caller asks about, or the one that is loaded.
int64_t asked_version(Library library, int64_t version) {
  return version != 0 ? version : library_version(library);
}

std::string version_or_empty(int64_t version) { return version == 0 ? "" : version_text(version); }

py::dict dict_of(const Erratum& row, int64_t version, int capability) {
  py::dict d;
  Notes with, without;
  for (Note note : row.with) with.add(note);
  for (Note note : row.without) without.add(note);
  d["id"] = row.id;
  d["library"] = enum_text(kLibraries, row.library);
  d["place"] = enum_text(kPlaces, row.place);
  d["backends"] = row.backends;
  d["families"] = row.families;
  d["passes"] = row.passes;
  d["algorithms"] = row.algorithms;
  d["with_notes"] = with.texts();
  d["without_notes"] = without.texts();
  d["architectures"] = row.architectures;
  d["first"] = version_text(row.first);
  d["last_good"] = version_or_empty(row.last_good);
  d["fixed"] = version_or_empty(row.fixed);
  bool notes = row.remedy == Remedy::note;
  d["remedy"] = notes ? Notes{row.note}.texts()[0] : enum_text(kRemedies, row.remedy);
  d["is_note"] = notes;
  d["text"] = row.text;
  d["evidence"] = row.evidence;
  py::list runs;
  for (const Reproduction& run : row.reproductions) {
    py::dict r;
    r["problem"] = run.problem;
    r["algorithm"] = run.algorithm;
    r["inputs"] = run.inputs;
    runs.append(r);
  }
  d["runs"] = runs;
  d["state"] = state_text(row, version, capability);
  return d;
}

py::list errata(int64_t cudnn, int64_t pytorch, int capability) {
  py::list out;
  for (const Erratum& row : all_errata()) {
    int64_t asked = row.library == Library::cudnn ? cudnn : pytorch;
    out.append(dict_of(row, asked_version(row.library, asked), capability));
  }
  return out;
}

py::list hints(int64_t cudnn, int capability) {
  py::list out;
  for (const EngineHint& hint : engine_hints()) {
    py::dict d;
    py::list measured;
    for (const Platform& p : hint.measured) {
      measured.append(py::make_tuple(version_text(p.cudnn), p.capability));
    }
    d["id"] = hint.id;
    d["family"] = hint.family;
    d["algorithms"] = hint.algorithms;
    d["measured"] = measured;
    d["text"] = hint.text;
    d["on"] = is_on(hint, asked_version(Library::cudnn, cudnn), capability);
    out.append(d);
  }
  return out;
}

py::object hint_for(const std::string& text) {
  const EngineHint* hint = find_hint(parse_problem(text));
  if (hint == nullptr) return py::none();
  return py::str(hint->id);
}

}  // namespace

void bind_libraries(py::module_& m) {
  m.def("errata", errata, py::arg("cudnn") = 0, py::arg("pytorch") = 0, py::arg("capability") = 0);
  m.def(
      "erratum_concerns",
      [](const std::string& id, const std::string& problem, const std::string& algorithm,
         const std::vector<std::string>& notes) {
        return concerns(erratum_with_id(id), parse_problem(problem), parse_algorithm(algorithm),
                        notes_from_texts(notes));
      },
      py::arg("id"), py::arg("problem"), py::arg("algorithm"), py::arg("notes"));
  m.def(
      "lift_errata",
      [](const std::vector<std::string>& ids) {
        lift_errata(ids);
        plan_cache_clear();
      },
      py::arg("ids"));
  m.def("library_versions", [] {
    py::dict d;
    for (const auto& name : kLibraries) d[name.text] = library_version(name.value);
    return d;
  });
  m.def(
      "override_library_version",
      [](const std::string& library, int64_t version) {
        override_library_version(enum_value(kLibraries, "library", library), version);
        plan_cache_clear();
      },
      py::arg("library"), py::arg("version"));
  m.def("engine_hints", hints, py::arg("cudnn") = 0, py::arg("capability") = 0);
  m.def("engine_hint_for", hint_for, py::arg("problem"));
  m.def("verified_platforms", [] {
    py::list out;
    for (const VerifiedPlatform& row : kVerified) {
      py::dict d;
      d["cudnn"] = version_text(row.platform.cudnn);
      d["capability"] = row.platform.capability;
      d["replays_kernels"] = row.replays_kernels;
      d["gpus"] = row.gpus;
      out.append(d);
    }
    return out;
  });
  m.def(
      "caution",
      [](int64_t cudnn, int capability) {
        return caution_text(asked_version(Library::cudnn, cudnn), capability);
      },
      py::arg("cudnn"), py::arg("capability"));
  m.def(
      "capability", [](const std::string& device) { return capability_of(parse_device(device)); },
      py::arg("device"));
}

}  // namespace torch_cudnn_ext
