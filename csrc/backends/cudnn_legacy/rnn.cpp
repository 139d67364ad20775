// Recurrent networks through cuDNN's classic API: every algorithm with every math type.
#include <ATen/ATen.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <utility>

#include "backends/cudnn_legacy/rnn_dropout.h"
#include "core/backend.h"
#include "core/errata.h"
#include "core/operator.h"
#include "cuda/workspace.h"
#include "problems/rnn_layout.h"

namespace torch_cudnn_ext::legacy {
namespace {

using at::Tensor;

using RnnDescriptor =
    Descriptor<cudnnRNNDescriptor_t, cudnnCreateRNNDescriptor, cudnnDestroyRNNDescriptor>;
using RnnDataDescriptor = Descriptor<cudnnRNNDataDescriptor_t, cudnnCreateRNNDataDescriptor,
                                     cudnnDestroyRNNDataDescriptor>;

// Where a piece of the parameters lies in w and in cuDNN's weight space, in elements.
struct Piece {
  int64_t ours, theirs, count;
};

struct RnnDescriptors {
  RnnDescriptor rnn;
  RnnDropout dropout;
  RnnDataDescriptor x, y;
  TensorDescriptor h, c;
};

cudnnForwardMode_t forward_mode(const RnnProblem& p) {
  return p.train || p.dropout > 0 ? CUDNN_FWD_MODE_TRAINING : CUDNN_FWD_MODE_INFERENCE;
}

// What building a plan finds out.
struct Layout {
  size_t weight_bytes = 0, workspace_bytes = 0, reserve_bytes = 0;
  std::vector<Piece> pieces;
  int64_t slack = 0;      // elements allocated after the weight space
  bool in_place = false;  // whether the parameters lie as cuDNN wants them

  bool reads_in_place() const { return in_place && slack == 0; }
  size_t space_bytes(c10::ScalarType dtype) const {
    return weight_bytes + static_cast<size_t>(slack) * c10::elementSize(dtype);
  }
  // What a run allocates in addition to its results: cuDNN's workspace, weight spaces, and a
  // reserve that is not kept.
  int64_t temporary_bytes(const RnnProblem& p) const {
    int spaces = (reads_in_place() ? 0 : 1) + (p.pass == Pass::fwd || in_place ? 0 : 1);
    bool drops_reserve = !p.train && forward_mode(p) == CUDNN_FWD_MODE_TRAINING;
    return static_cast<int64_t>(workspace_bytes + (drops_reserve ? reserve_bytes : 0)) +
           spaces * static_cast<int64_t>(space_bytes(p.x.dtype));
  }
};

cudnnStatus_t set_data(const RnnDataDescriptor& descriptor, const RnnProblem& p, int64_t features,
                       const std::vector<int>& lengths) {
  return cudnnSetRNNDataDescriptor(descriptor.get(), cudnn_type(p.x.dtype),
                                   p.lengths == RnnLengths::packed
                                       ? CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_PACKED
                                       : CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_UNPACKED,
                                   static_cast<int>(p.steps()), static_cast<int>(p.batch()),
                                   static_cast<int>(features), lengths.data(), nullptr);
}

cudnnStatus_t set_sequences(const RnnDescriptors& d, const RnnProblem& p,
                            const std::vector<int>& lengths) {
  cudnnStatus_t status = set_data(d.x, p, p.input(), lengths);
  if (status != CUDNN_STATUS_SUCCESS) return status;
  return set_data(d.y, p, p.directions() * p.state(), lengths);
}

cudnnStatus_t get_spaces(const RnnDescriptors& d, const RnnProblem& p, Layout& layout) {
  return cudnnGetRNNTempSpaceSizes(cudnn_handle(), d.rnn.get(), forward_mode(p), d.x.get(),
                                   &layout.workspace_bytes, &layout.reserve_bytes);
}

const void* address(const Tensor& t) { return t.defined() ? t.const_data_ptr() : nullptr; }

// Elements to allocate after the parameters if the algorithm reads past the end of the matrices and
// there are fewer biases than it reads.
int64_t slack_of(const RnnProblem& p, const Algorithm& algorithm, const Device& device) {
  constexpr int64_t kSlack = 1024;
  bool reads_past_end = erratum_applies("rnn-persist-static-reads-past", p, algorithm, device);
  int64_t biases = 0;
  for (const RnnParameter& parameter : rnn_parameters(p)) {
    if (parameter.columns == 0) biases += parameter.rows;
  }
  return reads_past_end && biases < kSlack ? kSlack : 0;
}

class RnnPlan : public ReplayedPlan {
 public:
  RnnPlan(const RnnProblem& p, const Algorithm& algorithm, Notes notes,
          std::unique_ptr<RnnDescriptors> descriptors, Layout layout)
      : ReplayedPlan(algorithm, notes, layout.temporary_bytes(p)),
        p_(p),
        d_(std::move(descriptors)),
        layout_(std::move(layout)) {}
  ~RnnPlan() override {
    unload([&] { d_.reset(); });
  }

  void run(Bindings& b) override {
    rows_ = p_.steps() * p_.batch();
    if (p_.lengths == RnnLengths::packed) take_lengths(b[Role::batch_sizes]);
    c10::DataPtr workspace = allocate_workspace(layout_.workspace_bytes);
    if (p_.pass == Pass::fwd) {
      forward(b, workspace.get());
    } else {
      backward(b, workspace.get());
    }
  }

 private:
  // The number of steps of each sequence, from the number of sequences in each step.
  void take_lengths(const Tensor& batch_sizes) {
    std::vector<int64_t> sizes = rnn_batch_sizes(p_, batch_sizes);
    rows_ = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
    std::vector<int> lengths(static_cast<size_t>(p_.batch()), 0);
    for (int64_t size : sizes) {
      for (int64_t i = 0; i < size; ++i) ++lengths[static_cast<size_t>(i)];
    }
    check_cudnn(set_sequences(*d_, p_, lengths), "cudnnSetRNNDataDescriptor");
    check_cudnn(get_spaces(*d_, p_, layout_), "cudnnGetRNNTempSpaceSizes");
  }

  // A packed batch has only the rows that are there; those after them are zero.
  void* sequence_output(Bindings& b, Role role, TensorSpec spec) const {
    const Tensor& x = b[Role::x];
    if (p_.lengths == RnnLengths::packed) spec.sizes[0] = x.size(0);
    void* address = output(b, role, spec, x);
    if (spec.sizes[0] > rows_ && p_.lengths == RnnLengths::packed) {
      b[role].narrow(0, rows_, spec.sizes[0] - rows_).zero_();
    }
    return address;
  }

  // The parameters in cuDNN's layout: w itself if that is the same.
  Tensor weights(const Bindings& b) const {
    const Tensor& w = b[Role::w];
    if (layout_.reads_in_place()) return w;
    Tensor space = weight_space(w);
    for (const Piece& piece : layout_.pieces) {
      space.narrow(0, piece.theirs, piece.count).copy_(w.narrow(0, piece.ours, piece.count));
    }
    return space;
  }

  Tensor weight_space(const Tensor& w) const {
    size_t elements = layout_.space_bytes(p_.x.dtype) / c10::elementSize(p_.x.dtype);
    return at::zeros({static_cast<int64_t>(elements)}, w.options());
  }

  void forward(Bindings& b, void* workspace) {
    const Tensor& x = b[Role::x];
    bool lstm = p_.cell == RnnCell::lstm;
    void* y = sequence_output(b, Role::y, rnn_y(p_));
    void* hy = output(b, Role::hy, rnn_h(p_), x);
    void* cy = lstm ? output(b, Role::cy, rnn_c(p_), x) : nullptr;
    Tensor w = weights(b);
    Tensor reserve;
    if (forward_mode(p_) == CUDNN_FWD_MODE_TRAINING) {
      reserve =
          at::empty({static_cast<int64_t>(layout_.reserve_bytes)}, x.options().dtype(at::kByte));
    }
    d_->dropout.prepare();
    const void *in = x.const_data_ptr(), *hx = address(b[Role::hx]), *cx = address(b[Role::cx]);
    const void* parameters = w.const_data_ptr();
    void* left = reserve.defined() ? reserve.data_ptr() : nullptr;
    ReplayKey key{in, y, hx, hy, cx, cy, parameters, workspace, left};
    replays_.run(key, replay(b), [&](const ReplayKey& at) {
      auto [in, y, hx, hy, cx, cy, parameters, workspace, left] = at.addresses<9>();
      check_cudnn(
          cudnnRNNForward(cudnn_handle(), d_->rnn.get(), forward_mode(p_), nullptr, d_->x.get(), in,
                          d_->y.get(), y, d_->h.get(), hx, hy, lstm ? d_->c.get() : nullptr, cx, cy,
                          layout_.weight_bytes, parameters, layout_.workspace_bytes, workspace,
                          reserve.defined() ? reserve.nbytes() : 0, left),
          "cudnnRNNForward");
    });
    d_->dropout.used();
    if (p_.train) b[Role::reserve] = std::move(reserve);
  }

  void backward(Bindings& b, void* workspace) {
    const Tensor &x = b[Role::x], &y = b[Role::y], &reserve = b[Role::reserve];
    TORCH_CHECK(reserve.nbytes() >= layout_.reserve_bytes, algorithm.text(),
                ": the forward of this network ran another algorithm: it left ", reserve.nbytes(),
                " bytes, wanted ", layout_.reserve_bytes);
    bool lstm = p_.cell == RnnCell::lstm;
    cudnnTensorDescriptor_t c = lstm ? d_->c.get() : nullptr;
    void* dx = sequence_output(b, Role::dx, rnn_x(p_));
    void* dhx = output(b, Role::dhx, rnn_h(p_), x);
    void* dcx = lstm ? output(b, Role::dcx, rnn_c(p_), x) : nullptr;
    Tensor w = weights(b);
    output(b, Role::dw, rnn_w(p_), x);
    Tensor& dw = b[Role::dw];
    Tensor space = layout_.in_place ? dw.zero_() : weight_space(dw);  // gradients are added to it
    const void *in = x.const_data_ptr(), *out = y.const_data_ptr(),
               *parameters = w.const_data_ptr();
    const void *hx = address(b[Role::hx]), *cx = address(b[Role::cx]);
    const void *dy = b[Role::dy].const_data_ptr(), *dhy = address(b[Role::dhy]);
    const void* dcy = address(b[Role::dcy]);
    void *left = reserve.data_ptr(), *gradients = space.data_ptr();
    ReplayKey key{in, out, dy,  dx,         hx,   dhy,       dhx,
                  cx, dcy, dcx, parameters, left, gradients, workspace};
    key.push(static_cast<double>(reserve.nbytes()));  // may be more than this plan needs
    replays_.run(key, replay(b), [&](const ReplayKey& at) {
      auto [in, out, dy, dx, hx, dhy, dhx, cx, dcy, dcx, parameters, left, gradients, workspace] =
          at.addresses<14>();
      cudnnHandle_t handle = cudnn_handle();
      check_cudnn(cudnnRNNBackwardData_v8(
                      handle, d_->rnn.get(), nullptr, d_->y.get(), out, dy, d_->x.get(), dx,
                      d_->h.get(), hx, dhy, dhx, c, cx, dcy, dcx, layout_.weight_bytes, parameters,
                      layout_.workspace_bytes, workspace, reserve.nbytes(), left),
                  "cudnnRNNBackwardData_v8");
      check_cudnn(cudnnRNNBackwardWeights_v8(
                      handle, d_->rnn.get(), CUDNN_WGRAD_MODE_ADD, nullptr, d_->x.get(), in,
                      d_->h.get(), hx, d_->y.get(), out, layout_.weight_bytes, gradients,
                      layout_.workspace_bytes, workspace, reserve.nbytes(), left),
                  "cudnnRNNBackwardWeights_v8");
    });
    if (layout_.in_place) return;
    for (const Piece& piece : layout_.pieces) {
      dw.narrow(0, piece.ours, piece.count).copy_(space.narrow(0, piece.theirs, piece.count));
    }
  }

  // Descriptors hold the lengths of each run, and random numbers differ from run to run.
  Replay replay(const Bindings& b) const {
    return p_.lengths == RnnLengths::packed || p_.dropout != 0 ? Replay::never : b.replay;
  }

  const RnnProblem p_;
  std::unique_ptr<RnnDescriptors> d_;
  Layout layout_;
  int64_t rows_ = 0;  // of the batch that runs
};

// --- building

cudnnRNNBiasMode_t bias_mode(RnnBias bias) {
  switch (bias) {
    case RnnBias::none:
      return CUDNN_RNN_NO_BIAS;
    case RnnBias::single:
      return CUDNN_RNN_SINGLE_INP_BIAS;
    case RnnBias::twice:
      return CUDNN_RNN_DOUBLE_BIAS;
  }
  return CUDNN_RNN_DOUBLE_BIAS;
}

cudnnRNNMode_t cell_mode(RnnCell cell) {
  static_assert(static_cast<int>(RnnCell::relu) == CUDNN_RNN_RELU &&
                static_cast<int>(RnnCell::tanh) == CUDNN_RNN_TANH &&
                static_cast<int>(RnnCell::lstm) == CUDNN_LSTM &&
                static_cast<int>(RnnCell::gru) == CUDNN_GRU);
  return static_cast<cudnnRNNMode_t>(cell);
}

cudnnStatus_t set_network(const RnnDescriptors& d, const RnnProblem& p, cudnnRNNAlgo_t algorithm,
                          cudnnMathType_t math) {
  return cudnnSetRNNDescriptor_v8(
      d.rnn.get(), algorithm, cell_mode(p.cell), bias_mode(p.bias),
      p.bidirectional ? CUDNN_BIDIRECTIONAL : CUDNN_UNIDIRECTIONAL,
      p.skip ? CUDNN_SKIP_INPUT : CUDNN_LINEAR_INPUT, cudnn_type(p.x.dtype), cudnn_type(p.compute),
      math, static_cast<int32_t>(p.input()), static_cast<int32_t>(p.hidden),
      static_cast<int32_t>(p.state()), static_cast<int32_t>(p.layers), d.dropout.get(),
      p.lengths == RnnLengths::packed ? CUDNN_RNN_PADDED_IO_DISABLED : CUDNN_RNN_PADDED_IO_ENABLED);
}

// The place where cuDNN has a gate's part of a parameter, in elements; -1 if it has none.
cudnnStatus_t find_gate(const RnnDescriptors& d, const RnnProblem& p, const RnnParameter& parameter,
                        int64_t gate, const Tensor& space, int64_t& place) {
  using Kind = RnnParameter::Kind;
  bool recurrent =
      parameter.kind == Kind::recurrent_matrix || parameter.kind == Kind::recurrent_bias;
  int64_t id =
      parameter.kind == Kind::projection ? 2 * p.gates() : gate + (recurrent ? p.gates() : 0);
  TensorDescriptor matrix, bias;
  void *matrix_address = nullptr, *bias_address = nullptr;
  cudnnStatus_t status =
      cudnnGetRNNWeightParams(cudnn_handle(), d.rnn.get(), static_cast<int32_t>(parameter.layer),
                              space.nbytes(), space.const_data_ptr(), static_cast<int32_t>(id),
                              matrix.get(), &matrix_address, bias.get(), &bias_address);
  auto* found = static_cast<const char*>(parameter.columns > 0 ? matrix_address : bias_address);
  place = found == nullptr ? -1
                           : (found - static_cast<const char*>(space.const_data_ptr())) /
                                 static_cast<int64_t>(c10::elementSize(p.x.dtype));
  return status;
}

std::optional<Unsupported> find_pieces(const RnnDescriptors& d, const RnnProblem& p,
                                       c10::Device device, Layout& layout) {
  // cuDNN computes addresses in a space that it is given; nothing is read.
  Tensor space = at::empty({static_cast<int64_t>(layout.weight_bytes)},
                           at::TensorOptions(at::kByte).device(device));
  std::vector<Piece>& pieces = layout.pieces;
  std::vector<RnnParameter> parameters = rnn_parameters(p);
  for (bool vectors : {false, true}) {
    for (const RnnParameter& parameter : parameters) {
      if ((parameter.columns == 0) != vectors) continue;
      int64_t parts = parameter.kind == RnnParameter::Kind::projection ? 1 : p.gates();
      int64_t count = parameter.numel() / parts;
      for (int64_t gate = 0; gate < parts; ++gate) {
        Piece piece{parameter.offset + gate * count, 0, count};
        cudnnStatus_t status = find_gate(d, p, parameter, gate, space, piece.theirs);
        if (status != CUDNN_STATUS_SUCCESS) return unsupported(status, cudnn_status_text(status));
        if (piece.theirs < 0) {
          return Unsupported{"cuDNN has no place for a parameter of this network"};
        }
        bool joined = !pieces.empty() && pieces.back().ours + pieces.back().count == piece.ours &&
                      pieces.back().theirs + pieces.back().count == piece.theirs;
        if (joined) {
          pieces.back().count += count;
        } else {
          pieces.push_back(piece);
        }
      }
    }
  }
  return std::nullopt;
}

// The classic API tells no properties of an algorithm: a math type other than FMA may use TF32 for
// float32 data.
Notes rnn_notes_of(const RnnProblem& p, cudnnRNNAlgo_t algorithm, int math) {
  Notes notes;
  if (algorithm == CUDNN_RNN_ALGO_PERSIST_DYNAMIC) notes.add(Note::runtime_compilation);
  if (p.x.dtype != at::kFloat || math == CUDNN_FMA_MATH) return notes;
  notes.add(Note::tf32);
  if (math == CUDNN_TENSOR_OP_MATH_ALLOW_CONVERSION) notes.add(Note::down_convert);
  return notes;
}

// float64 has neither tensor cores nor a type to convert to, and half types are not converted.
bool is_duplicate(const RnnProblem& p, int math) {
  if (p.x.dtype == at::kDouble) return math != CUDNN_DEFAULT_MATH;
  return p.x.dtype != at::kFloat && math == CUDNN_TENSOR_OP_MATH_ALLOW_CONVERSION;
}

std::vector<Candidate> rnn_candidates(const RnnProblem& p, const Device&) {
  std::vector<Candidate> list;
  for (const LegacyName& name : operator_of(p).legacy_names(pass_of(p))) {
    for (const MathType& math : kMathTypes) {
      if (is_duplicate(p, math.value)) continue;
      list.push_back({{"legacy", name.name, {{"math", math.text}}}, "enumeration"});
    }
  }
  return list;
}

BuildResult build_rnn_plan(const RnnProblem& p, const Algorithm& algorithm, const Device& device) {
  const MathType* math = find_math(algorithm);
  if (math == nullptr) return Unsupported{algorithm.text() + " has no math type"};
  std::optional<int> value = find_value(p, algorithm);
  if (!value) return Unsupported{c10::str("no algorithm ", algorithm.name, " in this pass")};
  if (p.lengths == RnnLengths::packed && *value != CUDNN_RNN_ALGO_STANDARD) {
    return Unsupported{"sequences of several lengths need legacy:standard"};
  }
  auto kind = static_cast<cudnnRNNAlgo_t>(*value);
  if (auto erratum = unsupported_by_erratum(p, algorithm, {}, device)) return *erratum;
  if (auto reason = why_unsupported(device)) return *reason;
  auto d = std::make_unique<RnnDescriptors>();
  set(d->h, rnn_h(p));
  set(d->c, rnn_c(p));
  Layout layout;
  // The sequences of a packed batch can be no longer.
  std::vector<int> lengths(static_cast<size_t>(p.batch()), static_cast<int>(p.steps()));
  cudnnStatus_t status = d->dropout.set(p.dropout, device.torch_device());
  auto then = [&](auto&& call) {
    if (status == CUDNN_STATUS_SUCCESS) status = call();
  };
  then([&] { return set_network(*d, p, kind, static_cast<cudnnMathType_t>(math->value)); });
  then([&] { return set_sequences(*d, p, lengths); });
  if (kind == CUDNN_RNN_ALGO_PERSIST_DYNAMIC) {
    then([&] {
      return cudnnBuildRNNDynamic(cudnn_handle(), d->rnn.get(), static_cast<int>(p.batch()));
    });
  }
  then([&] { return get_spaces(*d, p, layout); });
  then([&] {
    return cudnnGetRNNWeightSpaceSize(cudnn_handle(), d->rnn.get(), &layout.weight_bytes);
  });
  check_cudnn_files_once();
  if (status != CUDNN_STATUS_SUCCESS) return unsupported(status, cudnn_status_text(status));
  if (auto reason = find_pieces(*d, p, device.torch_device(), layout)) return *reason;
  layout.slack = slack_of(p, algorithm, device);
  layout.in_place = layout.pieces.size() == 1 && layout.pieces[0].theirs == 0 &&
                    layout.weight_bytes == static_cast<size_t>(rnn_w(p).nbytes());
  return std::make_shared<RnnPlan>(p, algorithm, rnn_notes_of(p, kind, math->value), std::move(d),
                                   std::move(layout));
}

const RegisterBackendOperator<RnnProblem> rnn_registered("legacy", rnn_candidates, build_rnn_plan);

}  // namespace
}  // namespace torch_cudnn_ext::legacy
