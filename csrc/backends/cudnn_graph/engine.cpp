#include "backends/cudnn_graph/engine.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <set>

#include "cuda/workspace.h"

namespace torch_cudnn_ext::graph {

namespace {

// Ids of what has no role.
constexpr int64_t kIntermediateIds = 1000, kScalarIds = 2000, kUpdatedIds = 3000;

constexpr int64_t kMaxKnobs = 64;  // CUDNN_KNOB_TYPE_COUNTS is 44 in 9.19

Descriptor make_engine_descriptor(const OperationGraph& graph, int64_t index) {
  Descriptor engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  engine.set(CUDNN_ATTR_ENGINE_OPERATION_GRAPH, *graph.graph)
      .set(CUDNN_ATTR_ENGINE_GLOBAL_INDEX, index);
  if (graph.device_properties) engine.set(CUDNN_ATTR_ENGINE_DEVICEPROP, *graph.device_properties);
  engine.finalise("the engine does not take this problem");
  return engine;
}

int64_t engine_index(const Algorithm& algorithm) { return std::stoll(algorithm.name.substr(3)); }

Descriptor make_config(const Descriptor& engine, const Algorithm& algorithm) {
  Descriptor config(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
  config.set(CUDNN_ATTR_ENGINECFG_ENGINE, engine);
  std::vector<Descriptor> choices;
  std::vector<cudnnBackendDescriptor_t> handles;
  for (const auto& [key, value] : algorithm.options) {
    auto type = static_cast<cudnnBackendKnobType_t>(std::stoi(key.substr(1)));
    int64_t number = std::stoll(value);
    Descriptor choice(CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR);
    choice.set(CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, 1, &type)
        .set(CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, number)
        .finalise("the knob choice is not valid");
    handles.push_back(choice.get());
    choices.push_back(std::move(choice));
  }
  if (!handles.empty()) {
    config.set(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_TYPE_BACKEND_DESCRIPTOR,
               static_cast<int64_t>(handles.size()), handles.data());
  }
  config.finalise("the engine does not take this configuration");
  return config;
}

Algorithm algorithm_of(const Descriptor& config) {
  auto engines =
      config.get_descriptors(CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_BACKEND_ENGINE_DESCRIPTOR, 1);
  Algorithm algorithm{
      "graph", c10::str("eng", engines.at(0).get_int64(CUDNN_ATTR_ENGINE_GLOBAL_INDEX)), {}};
  auto choices = config.get_descriptors(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES,
                                        CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, kMaxKnobs);
  for (const Descriptor& choice : choices) {
    auto types = choice.get_list<cudnnBackendKnobType_t>(CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE,
                                                         CUDNN_TYPE_KNOB_TYPE, 1);
    int64_t value = choice.get_int64(CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE);
    algorithm = algorithm.with(c10::str("k", static_cast<int>(types.at(0))), std::to_string(value));
  }
  return algorithm;
}

// Empty if the list cannot be made: the engines with default knobs remain.
std::vector<Algorithm> heuristic_list(const OperationGraph& graph, cudnnBackendHeurMode_t mode) {
  std::vector<Algorithm> list;
  try {
    Descriptor heuristic(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    heuristic.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, *graph.graph)
        .set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    if (graph.device_properties) {
      heuristic.set(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, *graph.device_properties);
    }
    heuristic.finalise("the heuristic has no answer");
    int64_t count = 0;
    check(cudnnBackendGetAttribute(heuristic.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                   CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, &count, nullptr),
          "counting the heuristic's results");
    auto configs = heuristic.get_descriptors(CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                             CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, count);
    for (const Descriptor& config : configs) list.push_back(algorithm_of(config));
  } catch (const Failure&) {
    return {};
  }
  return list;
}

Notes notes_of(const Descriptor& engine, bool float32_products) {
  Notes notes;
  auto numerical = engine.get_list<cudnnBackendNumericalNote_t>(
      CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE, CUDNN_NUMERICAL_NOTE_TYPE_COUNT);
  for (cudnnBackendNumericalNote_t note : numerical) {
    switch (note) {
      case CUDNN_NUMERICAL_NOTE_TENSOR_CORE:
        notes.add(Note::tensor_core);
        if (float32_products) notes.add(Note::tf32);
        break;
      case CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS:
      case CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION:
        notes.add(Note::down_convert);
        break;
      case CUDNN_NUMERICAL_NOTE_FFT:
        notes.add(Note::fft);
        break;
      case CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC:
        notes.add(Note::nondeterministic);
        break;
      case CUDNN_NUMERICAL_NOTE_WINOGRAD:
      case CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_4x4:
      case CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_6x6:
      case CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13:
        notes.add(Note::winograd);
        break;
      default:
        break;
    }
  }
  auto behaviour = engine.get_list<cudnnBackendBehaviorNote_t>(
      CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE, CUDNN_TYPE_BEHAVIOR_NOTE, CUDNN_BEHAVIOR_NOTE_TYPE_COUNT);
  for (cudnnBackendBehaviorNote_t note : behaviour) {
    if (note == CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION) notes.add(Note::runtime_compilation);
    bool reordered = note == CUDNN_BEHAVIOR_NOTE_REQUIRES_FILTER_INT8x32_REORDER ||
                     note == CUDNN_BEHAVIOR_NOTE_REQUIRES_BIAS_INT8x32_REORDER;
    if (reordered) throw Failure(CUDNN_STATUS_NOT_SUPPORTED, "the engine wants reordered weights");
  }
  return notes;
}

struct Knob {
  int64_t type, minimum, maximum, stride;
};

std::vector<Knob> knobs_of(const Descriptor& engine) {
  std::vector<Knob> knobs;
  for (const Descriptor& info : engine.get_descriptors(
           CUDNN_ATTR_ENGINE_KNOB_INFO, CUDNN_BACKEND_KNOB_INFO_DESCRIPTOR, kMaxKnobs)) {
    auto types =
        info.get_list<cudnnBackendKnobType_t>(CUDNN_ATTR_KNOB_INFO_TYPE, CUDNN_TYPE_KNOB_TYPE, 1);
    knobs.push_back({static_cast<int64_t>(types.at(0)),
                     info.get_int64(CUDNN_ATTR_KNOB_INFO_MINIMUM_VALUE),
                     info.get_int64(CUDNN_ATTR_KNOB_INFO_MAXIMUM_VALUE),
                     std::max<int64_t>(info.get_int64(CUDNN_ATTR_KNOB_INFO_STRIDE), 1)});
  }
  return knobs;
}

// Values to try for one knob: all of a short range; of a long one the nearest and a coarse sweep.
std::set<int64_t> values_to_try(const Knob& knob, std::optional<int64_t> current) {
  std::set<int64_t> values;
  int64_t steps = (knob.maximum - knob.minimum) / knob.stride;
  constexpr int64_t kShort = 24, kSweep = 8;
  for (int64_t i = 0; i <= std::min(steps, steps <= kShort ? steps : kSweep); ++i) {
    int64_t step = steps <= kShort ? i : i * steps / kSweep;
    values.insert(knob.minimum + step * knob.stride);
  }
  if (current) {
    for (int64_t away : {-2, -1, 1, 2}) {
      int64_t value = *current + away * knob.stride;
      if (value >= knob.minimum && value <= knob.maximum) values.insert(value);
    }
    values.erase(*current);
  }
  return values;
}

// `flag` is an attribute to set; `invalid` says what is wrong if cuDNN reports an error.
Descriptor make_tensor_with_id(const TensorSpec& spec, int64_t id, int64_t alignment,
                               std::optional<cudnnBackendAttributeName_t> flag = std::nullopt,
                               const char* invalid = "the tensor is not valid") {
  bool on = true;
  Descriptor tensor(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  tensor.set(CUDNN_ATTR_TENSOR_DATA_TYPE, cudnn_type(spec.dtype))
      .set(CUDNN_ATTR_TENSOR_DIMENSIONS, spec.sizes)
      .set(CUDNN_ATTR_TENSOR_STRIDES, spec.strides)
      .set(CUDNN_ATTR_TENSOR_UNIQUE_ID, id)
      .set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, alignment);
  if (flag) tensor.set(*flag, CUDNN_TYPE_BOOLEAN, 1, &on);
  tensor.finalise(invalid);
  return tensor;
}

int64_t id_of(Role role) { return static_cast<int64_t>(role) + 1; }

}  // namespace

Descriptor make_tensor(const TensorSpec& spec, Role role, int64_t alignment) {
  return make_tensor_with_id(spec, id_of(role), alignment);
}

Descriptor make_updated(const TensorSpec& spec, Role role, int64_t alignment) {
  return make_tensor_with_id(spec, kUpdatedIds + id_of(role), alignment);
}

Descriptor make_intermediate(const TensorSpec& spec, int number) {
  return make_tensor_with_id(spec, kIntermediateIds + number, 16, CUDNN_ATTR_TENSOR_IS_VIRTUAL,
                             "the intermediate tensor is not valid");
}

Descriptor make_scalar(const std::vector<Scalar>& scalars, Scalar scalar, int dims) {
  auto place = std::find(scalars.begin(), scalars.end(), scalar) - scalars.begin();
  Dims ones(dims, 1);
  return make_tensor_with_id({c10::ScalarType::Float, ones, ones}, kScalarIds + place, 16,
                             CUDNN_ATTR_TENSOR_IS_BY_VALUE, "the scalar is not valid");
}

OperationGraph make_graph(const Device& device, std::vector<Descriptor> parts,
                          std::vector<Descriptor> operations) {
  OperationGraph made;
  made.parts = std::move(parts);
  made.operations = std::move(operations);
  std::vector<cudnnBackendDescriptor_t> handles;
  for (const Descriptor& operation : made.operations) handles.push_back(operation.get());
  made.graph.emplace(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  made.graph->set(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                  static_cast<int64_t>(handles.size()), handles.data());
  if (device.is_target()) {
    const std::string& json = target_properties(device);
    made.device_properties.emplace(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
    made.device_properties
        ->set(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
              static_cast<int64_t>(json.size()), json.data())
        .finalise("the target's device properties are not valid");
  } else {
    cudnnHandle_t handle = cudnn_handle();
    made.graph->set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
  }
  made.graph->finalise("cuDNN has no such operation");
  return made;
}

std::vector<Candidate> candidates(const OperationGraph& graph) {
  std::vector<Candidate> list;
  std::set<std::string> seen;
  auto add = [&](Algorithm algorithm, std::string source) {
    if (seen.insert(algorithm.text()).second) {
      list.push_back({std::move(algorithm), std::move(source)});
    }
  };
  constexpr std::pair<cudnnBackendHeurMode_t, const char*> kModes[] = {
      {CUDNN_HEUR_MODE_A, "A"}, {CUDNN_HEUR_MODE_B, "B"}, {CUDNN_HEUR_MODE_FALLBACK, "FALLBACK"}};
  for (const auto& [mode, name] : kModes) {
    int number = 0;
    for (Algorithm& algorithm : heuristic_list(graph, mode)) {
      add(std::move(algorithm), c10::str("heuristic ", name, " #", ++number));
    }
  }
  forget_cudnn_messages();  // they are of what a heuristic tried, not of these engines
  int64_t engines = graph.graph->get_int64(CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT);
  for (int64_t i = 0; i < engines; ++i) add({"graph", c10::str("eng", i), {}}, kDefaultKnobs);
  return list;
}

std::vector<Algorithm> neighbours(const OperationGraph& graph, const Algorithm& algorithm) {
  constexpr size_t kMost = 96;
  std::vector<Algorithm> list;
  Descriptor engine = make_engine_descriptor(graph, engine_index(algorithm));
  for (const Knob& knob : knobs_of(engine)) {
    std::string key = c10::str("k", knob.type);
    const std::string* text = algorithm.option(key);
    std::optional<int64_t> current;
    if (text != nullptr) current = std::stoll(*text);
    for (int64_t value : values_to_try(knob, current)) {
      if (list.size() >= kMost) return list;
      Algorithm variation = algorithm.with(key, std::to_string(value));
      try {
        make_config(engine, variation);
      } catch (const Failure&) {
        continue;  // ranges have holes: the configuration is what says so
      }
      list.push_back(std::move(variation));
    }
  }
  return list;
}

UnbuiltEngine find_engine(const OperationGraph& graph, const Algorithm& algorithm) {
  int64_t count = graph.graph->get_int64(CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT);
  int64_t index = engine_index(algorithm);
  if (index >= count) {
    throw Failure(CUDNN_STATUS_BAD_PARAM,
                  c10::str("there is no engine ", index, ", the last is ", count - 1));
  }
  Descriptor engine = make_engine_descriptor(graph, index);
  Notes notes = notes_of(engine, graph.float32_products);
  return {std::move(engine), notes};
}

Engine build_engine(const OperationGraph& graph, const UnbuiltEngine& engine,
                    const Algorithm& algorithm) {
  Descriptor config = make_config(engine.descriptor, algorithm);
  Descriptor plan(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
  plan.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
  if (graph.device_properties) {
    plan.set(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, *graph.device_properties);
  } else {
    cudnnHandle_t handle = cudnn_handle();
    plan.set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
  }
  plan.finalise("no plan can be made of this configuration");
  check_cudnn_files_once();
  int64_t workspace = plan.get_int64(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE);
  return {std::move(plan), engine.notes, workspace};
}

EnginePlan::EnginePlan(Algorithm algorithm, Engine engine, std::vector<SlotSpec> slots,
                       std::vector<Scalar> scalars)
    : ReplayedPlan(std::move(algorithm), engine.notes, engine.workspace_bytes),
      plan_(std::move(engine.plan)),
      slots_(std::move(slots)),
      scalars_(std::move(scalars)) {}

EnginePlan::~EnginePlan() {
  unload([&] { Descriptor gone = std::move(plan_); });
}

const Descriptor& EnginePlan::pack_for(const ReplayKey& key, const Bindings& bindings) {
  for (const Pack& pack : packs_) {
    if (pack.key == key) return pack.descriptor;
  }
  Pack made{key, {}, Descriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR)};
  for (Scalar scalar : scalars_) made.scalars.push_back(static_cast<float>(bindings.*scalar));
  std::vector<int64_t> ids;
  std::vector<void*> addresses;  // in the order of slots_, then the workspace
  for (uint64_t address : key.addresses()) addresses.push_back(reinterpret_cast<void*>(address));
  void* workspace = addresses.back();
  addresses.pop_back();
  for (const SlotSpec& slot : slots_) ids.push_back(id_of(slot.role));
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (!slots_[i].is_mutated) continue;
    ids.push_back(kUpdatedIds + id_of(slots_[i].role));
    addresses.push_back(addresses[i]);
  }
  for (size_t i = 0; i < scalars_.size(); ++i) {
    ids.push_back(kScalarIds + static_cast<int64_t>(i));
    addresses.push_back(&made.scalars[i]);
  }
  auto count = static_cast<int64_t>(ids.size());
  made.descriptor.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, ids.data())
      .set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count, addresses.data())
      .set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace)
      .finalise("the tensors do not fit the plan");
  constexpr size_t kPacks = 4;
  if (packs_.size() < kPacks) return packs_.emplace_back(std::move(made)).descriptor;
  Pack& oldest = packs_[next_pack_++ % kPacks];
  oldest = std::move(made);
  return oldest.descriptor;
}

void EnginePlan::run(Bindings& bindings) {
  const at::Tensor* input = nullptr;
  for (const SlotSpec& slot : slots_) {
    if (!slot.is_output) input = &bindings[slot.role];
  }
  TORCH_INTERNAL_ASSERT(input != nullptr);
  ReplayKey key;
  for (const SlotSpec& slot : slots_) {
    at::Tensor& tensor = bindings[slot.role];
    if (!tensor.defined()) tensor = empty_on_cuda(slot.spec, *input);
    bool read_only = !slot.is_output && !slot.is_mutated;
    key.push(read_only ? tensor.const_data_ptr() : tensor.data_ptr());
  }
  c10::DataPtr workspace;
  if (*workspace_bytes > 0) {
    workspace = allocate_workspace(*workspace_bytes);
  }
  key.push(workspace.get());
  for (Scalar scalar : scalars_) key.push(bindings.*scalar);
  replays_.run(key, bindings.replay, [&](const ReplayKey& at) {
    try {
      const Descriptor& pack = pack_for(at, bindings);
      check(cudnnBackendExecute(cudnn_handle(), plan_.get(), pack.get()), "cudnnBackendExecute");
    } catch (const Failure& failure) {
      raise_cudnn(failure.status, c10::str(algorithm.text(), ": ", failure.what), failure.why);
    }
  });
}

}  // namespace torch_cudnn_ext::graph
