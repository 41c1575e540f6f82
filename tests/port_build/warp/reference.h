// What CUDA gives for kernels.cu, thread by thread, without a warp's functions: loops over the 32 values of a warp.
#pragma once
#include <algorithm>
#include <map>
#include <string>
#include <vector>
using Values = std::vector<int>;

// `warp` has the values of one warp, at most 32 of them; `block` all of them.
inline int expected(const std::string& kernel, const Values& warp, const Values& block, int lane) {
  int n = warp.size(), mine = warp[lane], sum = 0, up_to = 0, most = warp[0], odd = 0, odd_before = 0;
  int first = -1;
  for (int i = 0; i < n; i++) {
    sum += warp[i];
    up_to += i <= lane ? warp[i] : 0;
    most = std::max(most, warp[i]);
    odd += warp[i] & 1;
    odd_before += i < lane && warp[i] & 1;
    if (first < 0 && warp[i] % 7 == 0) first = warp[i];
  }
  if (kernel == "broadcast_first") return warp[0];
  if (kernel == "broadcast_last") return warp[31];
  if (kernel == "rotate") return warp[(lane + 1) % 32];
  if (kernel == "broadcast_in_eights") return warp[lane / 8 * 8 + 3];
  if (kernel == "sum_down") return lane == 0 ? sum : 0;
  if (kernel == "max_xor") return most;
  if (kernel == "reduce_add") return sum;
  if (kernel == "sum_of_warp_size") return sum * 32;
  if (kernel == "block_sum") {
    int all = 0;
    for (int v : block) all += v;
    return all;
  }
  if (kernel == "scan_up") return up_to;
  if (kernel == "exclusive_scan") return up_to - mine;
  if (kernel == "any_all") {
    bool any = most > 90, all = most < 97;
    return any * 2 + all;
  }
  if (kernel == "ballot_rank") return odd_before * 100 + odd;
  if (kernel == "compact") {
    int at = 0;
    for (int v : warp)
      if (v > 50 && at++ == lane) return v;
    return -1;
  }
  if (kernel == "first_voter") return first;
  if (kernel == "matched_sum") {
    int same = 0, count = 0;
    for (int v : warp)
      if (v % 3 == mine % 3) same += v, count++;
    return same + count * 10000;
  }
  if (kernel == "segmented_sum") {
    int made = 0;
    for (int i = lane; i >= 0; i--) {
      made += warp[i];
      if (warp[i] % 5 == 0) break;
    }
    return made;
  }
  if (kernel == "active_in_branch") {
    if (mine & 1) return odd * 100 + odd_before;
    int even = 0;
    for (int i = 0; i < 20; i++) even += !(warp[i] & 1);
    return lane < 20 ? -even : 0;
  }
  if (kernel == "halves") {
    int base = lane / 16 * 16, made = warp[base], has = 0;
    for (int i = base; i < base + 16; i++) {
      if (i > base) made = base ? std::min(made, warp[i]) : made + warp[i];
      has |= warp[i] == 96;
    }
    return made + has * 1000;
  }
  int size = 0, rank = 0;  // aggregated
  for (int i = 0; i < n; i++) size += warp[i] > 30, rank += i < lane && warp[i] > 30;
  return mine > 30 ? rank * 100 + size : -1;
}

// Values that differ between warps, between lanes and between the halves of a wavefront.
inline Values inputs(int threads) {
  Values made(threads);
  unsigned state = 12345;
  for (int& v : made) v = (state = state * 1103515245u + 12345u) >> 16 & 1023, v %= 97;
  return made;
}

inline unsigned digest(const Values& out) {
  unsigned made = 2166136261u;
  for (int v : out)
    for (int at = 0; at < 32; at += 8) made = (made ^ (unsigned(v) >> at & 255)) * 16777619u;
  return made;
}

inline int failures(const char* kernel, const Values& in, const Values& out) {
  int wrong = 0;
  for (size_t t = 0; t < in.size(); t++) {
    size_t first = t / 32 * 32;
    Values warp(in.begin() + first, in.begin() + std::min(first + 32, in.size()));
    wrong += out[t] != expected(kernel, warp, in, t - first);
  }
  return wrong;
}
