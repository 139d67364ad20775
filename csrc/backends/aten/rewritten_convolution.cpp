#include "backends/aten/rewritten_convolution.h"

#include <ATen/core/DimVector.h>

#include <algorithm>

#include "problems/tensor_steps.h"

namespace torch_cudnn_ext::aten {
namespace {

int64_t last(const Dims& dims) { return dims[dims.size() - 1]; }

// The batch size and all spatial sizes but the last.
Dims rows_of(const Dims& sizes) {
  Dims rows{sizes[0]};
  for (int i = 2; i + 1 < sizes.size(); ++i) rows.push_back(sizes[i]);
  return rows;
}

int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b < 0 ? 1 : 0); }
int64_t ceil_div(int64_t a, int64_t b) { return -floor_div(-a, b); }

bool is_one(int64_t n) { return n == 1; }
bool is_zero(int64_t n) { return n == 0; }

}  // namespace

// --- folded

bool FoldedChannels::takes(const ConvolutionProblem& p) {
  return p.pass != ConvolutionPass::bwd_data && p.spatial_dims() >= 2 && p.groups == 1 &&
         p.mode == ConvolutionMode::cross && p.x.sizes[1] <= kChannels && last(p.w.sizes) > 1 &&
         last(p.dilation) == 1 && c10::elementSize(p.x.dtype) <= 4 &&
         p.y.strides == channels_last_strides(p.y.sizes);
}

FoldedChannels::FoldedChannels(const ConvolutionProblem& p)
    : p_(p),
      columns_(last(p.w.sizes) + last(p.w.sizes) % 2),  // two make 8 channels
      adds_bias_(can_add_bias()) {}

// It can if some row of every window lies in x.
bool FoldedChannels::can_add_bias() const {
  if (!p_.bias || p_.x.sizes[1] == kChannels) return false;
  for (int i = 0; i + 1 < p_.spatial_dims(); ++i) {
    int64_t reach = (p_.w.sizes[i + 2] - 1) * p_.dilation[i];
    if (2 * p_.padding[i] > reach || p_.padding[i] % p_.dilation[i] != 0) return false;
  }
  return true;
}

Tensor FoldedChannels::input(const Tensor& x) const {
  int64_t places = last(p_.y.sizes), stride = last(p_.stride), padding = last(p_.padding);
  Dims sizes = rows_of(p_.x.sizes);
  sizes.push_back(std::max((places - 1) * stride + columns_, padding + last(p_.x.sizes)));
  sizes.push_back(kChannels);
  Tensor padded = at::zeros(sizes, x.options());
  padded.narrow(-2, padding, last(p_.x.sizes)).narrow(-1, 0, p_.x.sizes[1]).copy_(x.movedim(1, -1));
  if (adds_bias_) padded.select(-1, kChannels - 1).fill_(1);
  // A column is copied as one number.
  bool half = c10::elementSize(p_.x.dtype) == 2;
  Tensor columns = padded.view(half ? at::kLong : at::kComplexDouble).squeeze(-1);
  Tensor windows = columns.unfold(-1, columns_, stride).narrow(-2, 0, places);
  return windows.contiguous().view(p_.x.dtype);
}

Tensor FoldedChannels::weight(const Tensor& w, const Tensor& bias) const {
  Dims sizes = rows_of(p_.w.sizes);
  sizes.push_back(columns_);
  sizes.push_back(kChannels);
  Tensor folded = at::zeros(sizes, w.options());
  folded.narrow(-2, 0, last(p_.w.sizes)).narrow(-1, 0, p_.w.sizes[1]).copy_(w.movedim(1, -1));
  if (adds_bias_) {
    Tensor seen = folded.select(-1, kChannels - 1).select(-1, 0);
    for (int i = 0; i + 1 < p_.spatial_dims(); ++i) {
      seen = seen.select(1, p_.padding[i] / p_.dilation[i]);
    }
    seen.copy_(bias);
  }
  return folded.flatten(-2).unsqueeze(-2);
}

Tensor FoldedChannels::operator()(const Bindings& b) const {
  Tensor x = input(b[Role::x]).movedim(-1, 1);
  Dims stride = p_.stride, padding = p_.padding;
  const Dims none(p_.spatial_dims(), 0);
  stride[p_.spatial_dims() - 1] = 1;
  padding[p_.spatial_dims() - 1] = 0;
  if (p_.pass == ConvolutionPass::fwd) {
    Tensor w = weight(b[Role::w], b[Role::bias]).movedim(-1, 1);
    return at::convolution(x, w, adds_bias_ ? Tensor() : b[Role::bias], stride, padding,
                           p_.dilation, false, none, 1);
  }
  Dims sizes = p_.w.sizes;
  sizes[1] = x.size(1);
  sizes[sizes.size() - 1] = 1;
  Tensor w = at::empty_strided(sizes, channels_last_strides(sizes), x.options());
  Tensor folded =
      std::get<1>(at::convolution_backward(b[Role::y], x, w, c10::nullopt, stride, padding,
                                           p_.dilation, false, none, 1, {false, true, false}));
  folded = folded.movedim(1, -1).squeeze(-2).unflatten(-1, {columns_, kChannels});
  return folded.narrow(-2, 0, last(p_.w.sizes)).narrow(-1, 0, p_.w.sizes[1]).movedim(-1, 1);
}

// --- turned

std::vector<int64_t> TransposedAsForward::blocks(const ConvolutionProblem& p) {
  constexpr int64_t kMostChannels = 64, kMostSteps = 4;
  if (p.pass != ConvolutionPass::bwd_data ||
      !std::all_of(p.dilation.begin(), p.dilation.end(), is_one)) {
    return {};
  }
  int64_t least = *std::min_element(p.stride.begin(), p.stride.end());
  int64_t most = *std::max_element(p.stride.begin(), p.stride.end());
  // One group: its few channels become more. Several groups: the strides make the block.
  int64_t side = p.groups > 1 ? most : 2, end = p.groups > 1 ? most : kMostSteps * least;
  std::vector<int64_t> sides;
  for (; side <= std::min(end, kMostChannels); ++side) {
    int64_t channels = p.x.sizes[1] / p.groups;
    for (int i = 0; i < p.spatial_dims() && channels <= kMostChannels; ++i) channels *= side;
    bool fits = std::all_of(p.stride.begin(), p.stride.end(),
                            [side](int64_t stride) { return side % stride == 0; });
    if (fits && (side == 1 || channels <= kMostChannels)) sides.push_back(side);
  }
  return sides;
}

TransposedAsForward::TransposedAsForward(const ConvolutionProblem& p, int64_t block)
    : p_(p),
      block_(block),
      x_is_channels_last_(p.x.strides == channels_last_strides(p.x.sizes)),
      y_is_channels_last_(p.y.strides == channels_last_strides(p.y.sizes)) {
  for (int i = 0; i < p.spatial_dims(); ++i) {
    const Dimension& d = dimensions_.emplace_back(dimension(i));
    step_.push_back(block / p.stride[i]);
    padding_.push_back(step_[i] * d.skipped - d.first);
  }
}

TransposedAsForward::Dimension TransposedAsForward::dimension(int i) const {
  int64_t stride = p_.stride[i], padding = p_.padding[i], step = block_ / stride;
  Dimension d{};
  d.first = ceil_div(padding + 1 - p_.w.sizes[i + 2], stride);
  int64_t end = floor_div(block_ - 1 + padding, stride) + 1;
  d.taps = end - d.first;
  d.blocks = ceil_div(p_.x.sizes[i + 2], block_);
  // Places after the last one count as padding, of which there is as much before the first.
  int64_t after = std::max<int64_t>(step * (d.blocks - 1) + end - p_.y.sizes[i + 2], 0);
  d.skipped = std::max<int64_t>(ceil_div(after + d.first, step), 0);
  return d;
}

// [groups * block... * channels, filters of a group, taps...]
Tensor TransposedAsForward::weight(const Bindings& b) const {
  Tensor w = flip_for_mode(p_, b[Role::w]);
  int dims = p_.spatial_dims();
  // Before and after the taps, of the last dimension first.
  at::DimVector zeros;
  for (int i = dims - 1; i >= 0; --i) {
    const Dimension& d = dimensions_[i];
    int64_t before = (d.first + d.taps - 1) * p_.stride[i] - p_.padding[i];
    int64_t size = block_ + (d.taps - 1) * p_.stride[i];
    zeros.push_back(before);
    zeros.push_back(size - before - w.size(i + 2));
  }
  if (block_ > 1) w = at::constant_pad_nd(w, zeros);
  // [groups, filters, channels, taps..., block...], the last tap first
  for (int i = 0; i < dims; ++i) w = w.unfold(i + 2, block_, p_.stride[i]);
  w = w.unflatten(0, {p_.groups, p_.w.sizes[0] / p_.groups});
  at::DimVector taps, order{0};  // more dimensions than Dims has room for
  for (int i = 0; i < dims; ++i) {
    taps.push_back(3 + i);
    order.push_back(3 + dims + i);
  }
  order.push_back(2);
  order.push_back(1);
  for (int64_t tap : taps) order.push_back(tap);
  Tensor turned = w.flip(taps).permute(order).flatten(0, dims + 1);
  return y_is_channels_last_ ? turned.movedim(1, -1).contiguous().movedim(-1, 1)
                             : turned.contiguous();
}

// From [batch, groups * block... * channels, blocks...] to the sizes of x.
Tensor TransposedAsForward::pixels(const Tensor& blocks) const {
  int dims = p_.spatial_dims();
  Tensor t = blocks;
  for (int i = 0; i < dims; ++i) {
    t = t.narrow(i + 2, dimensions_[i].skipped, dimensions_[i].blocks);
  }
  Dims channels{p_.groups};
  for (int i = 0; i < dims; ++i) channels.push_back(block_);
  channels.push_back(p_.x.sizes[1] / p_.groups);
  t = t.unflatten(1, channels);
  at::DimVector order{0};
  auto add_channels = [&] {
    order.push_back(1);
    order.push_back(2 + dims);
  };
  if (!x_is_channels_last_) add_channels();
  for (int i = 0; i < dims; ++i) {
    order.push_back(3 + dims + i);
    order.push_back(2 + i);
  }
  if (x_is_channels_last_) add_channels();
  t = t.permute(order);
  Dims sizes{p_.x.sizes[0]};
  if (!x_is_channels_last_) sizes.push_back(p_.x.sizes[1]);
  for (const Dimension& d : dimensions_) sizes.push_back(d.blocks * block_);
  if (x_is_channels_last_) sizes.push_back(p_.x.sizes[1]);
  t = t.reshape(sizes);
  if (x_is_channels_last_) t = t.movedim(-1, 1);
  for (int i = 0; i < dims; ++i) t = t.narrow(i + 2, 0, p_.x.sizes[i + 2]);
  return t;
}

Tensor TransposedAsForward::operator()(const Bindings& b) const {
  return pixels(at::convolution(b[Role::y], weight(b), Tensor(), step_, padding_, p_.dilation,
                                false, Dims(p_.spatial_dims(), 0), p_.groups));
}

// --- im2col

bool Im2col::takes(const ConvolutionProblem& p) {
  constexpr double kMostBytes = 1 << 30;
  auto size = static_cast<double>(c10::elementSize(p.x.dtype));
  bool wanted = p.pass != ConvolutionPass::bwd_data && p.groups == 1 && size >= 4;
  if (!wanted) return false;
  Im2col made(p);
  double copied = static_cast<double>(made.windows_) * static_cast<double>(made.columns_);
  double padded = static_cast<double>(p.x.sizes[0] * p.x.sizes[1]);
  for (int i = 0; i < p.spatial_dims(); ++i) {
    padded *= static_cast<double>(p.x.sizes[i + 2]) + 2 * static_cast<double>(p.padding[i]);
  }
  return size * (copied + padded) <= kMostBytes;
}

Im2col::Im2col(const ConvolutionProblem& p)
    : p_(p),
      windows_(p.y.numel() / p.y.sizes[1]),
      columns_(p.w.numel() / p.w.sizes[0]),
      x_is_channels_last_(p.x.strides == channels_last_strides(p.x.sizes)) {}

Tensor Im2col::rows(const Tensor& x) const {
  int dims = p_.spatial_dims();
  at::DimVector zeros;  // around x, of the last dimension first
  for (int i = dims - 1; i >= 0; --i) zeros.append(2, p_.padding[i]);
  bool padded = !std::all_of(zeros.begin(), zeros.end(), is_zero);
  Tensor t = padded ? at::constant_pad_nd(x, zeros) : x;
  for (int i = 0; i < dims; ++i) {
    int64_t extent = (p_.w.sizes[i + 2] - 1) * p_.dilation[i] + 1;
    t = t.unfold(i + 2, extent, p_.stride[i]).slice(-1, 0, extent, p_.dilation[i]);
  }
  return t.movedim(1, x_is_channels_last_ ? -1 : dims + 1).reshape({windows_, columns_});
}

Tensor Im2col::operator()(const Bindings& b) const {
  Tensor x = rows(b[Role::x]);
  int64_t filters = p_.w.sizes[0];
  if (p_.pass == ConvolutionPass::fwd) {
    Tensor w = flip_for_mode(p_, b[Role::w]);
    if (x_is_channels_last_) w = w.movedim(1, -1);
    Tensor columns = w.reshape({filters, columns_}).t();
    Tensor y = p_.bias ? at::addmm(b[Role::bias], x, columns) : at::mm(x, columns);
    at::DimVector sizes(p_.y.sizes.begin(), p_.y.sizes.end());
    sizes.erase(sizes.begin() + 1);
    sizes.push_back(filters);
    return y.view(sizes).movedim(-1, 1);
  }
  Tensor y = b[Role::y].movedim(1, -1).reshape({windows_, filters});
  at::DimVector sizes(p_.w.sizes.begin(), p_.w.sizes.end());
  if (x_is_channels_last_) std::rotate(sizes.begin() + 1, sizes.begin() + 2, sizes.end());
  Tensor w = at::mm(y.t(), x).view(sizes);
  return flip_for_mode(p_, x_is_channels_last_ ? w.movedim(-1, 1) : w);
}

}  // namespace torch_cudnn_ext::aten
