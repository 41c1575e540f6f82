// One graph a size, made when it is first needed.
#include <algorithm>

#include "context.h"

using namespace gfx;

struct gfxg_pool {
  gfxg_pool(gfxg_context &context, std::vector<size_t> sizes, gfxg_record_size callback, void *with)
      : c(context), buckets(std::move(sizes)), execs(buckets.size()), record(callback), user(with) {}
  gfxg_context &c;
  std::mutex lock;
  std::vector<size_t> buckets;  // ascending
  std::vector<Exec> execs;
  gfxg_record_size record;
  void *user;

  gfxg_status find(size_t size, size_t *at) {
    *at = static_cast<size_t>(std::lower_bound(buckets.begin(), buckets.end(), size) - buckets.begin());
    if (*at < buckets.size()) return GFXG_OK;
    return c.fail(GFXG_NO_BUCKET,
                  {{"size", std::to_string(size)}, {"largest", std::to_string(buckets.back())}});
  }
  gfxg_status make(size_t at) {
    hipGraph_t graph = nullptr;
    GFX_TRY(capture(c, [&](hipStream_t stream) { return record(stream, buckets[at], user); }, &graph));
    const gfxg_status status = execs[at].become(c, graph);
    drop(c, &graph);
    return status;
  }
};

extern "C" {

gfxg_status gfxg_pool_create(gfxg_context *context, const size_t *buckets, size_t n_buckets, gfxg_record_size record,
                             void *user, gfxg_pool **out) {
  return at_boundary(context, [&] {
    if (!buckets || !n_buckets || !record)
      return context->invalid("gfxg_pool_create", "no buckets, or record is NULL");
    std::vector<size_t> sizes(buckets, buckets + n_buckets);
    std::sort(sizes.begin(), sizes.end());
    sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
    if (!sizes.front()) return context->invalid("gfxg_pool_create", "a bucket of size 0");
    return make_object(*context, out, std::move(sizes), record, user);
  });
}

gfxg_status gfxg_pool_bucket(gfxg_pool *o, size_t size, size_t *bucket) {
  if (!o) return GFXG_INVALID_ARGUMENT;
  return at_boundary(&o->c, [&] {
    if (!bucket) return o->c.invalid("gfxg_pool_bucket", "bucket is NULL");
    size_t at = 0;
    GFX_TRY(o->find(size, &at));
    *bucket = o->buckets[at];
    return GFXG_OK;
  });
}

gfxg_status gfxg_pool_prepare(gfxg_pool *o) {
  if (!o) return GFXG_INVALID_ARGUMENT;
  return at_boundary(&o->c, [&] {
    std::lock_guard<std::mutex> hold(o->lock);
    for (size_t at = o->buckets.size(); at-- > 0;)
      if (!o->execs[at].made()) GFX_TRY(o->make(at));
    return GFXG_OK;
  });
}

gfxg_status gfxg_pool_update(gfxg_pool *o, size_t size) {
  if (!o) return GFXG_INVALID_ARGUMENT;
  return at_boundary(&o->c, [&] {
    std::lock_guard<std::mutex> hold(o->lock);
    size_t at = 0;
    GFX_TRY(o->find(size, &at));
    return o->make(at);
  });
}

gfxg_status gfxg_pool_launch(gfxg_pool *o, size_t size, void *stream, size_t *bucket) {
  if (!o) return GFXG_INVALID_ARGUMENT;
  return at_boundary(&o->c, [&] {
    std::lock_guard<std::mutex> hold(o->lock);
    size_t at = 0;
    GFX_TRY(o->find(size, &at));
    if (!o->execs[at].made()) GFX_TRY(o->make(at));
    if (bucket) *bucket = o->buckets[at];
    return o->execs[at].launch(o->c, stream_of(stream));
  });
}

gfxg_status gfxg_pool_destroy(gfxg_pool *o) {
  if (!o) return GFXG_OK;
  gfxg_context &c = o->c;
  return at_boundary(&c, [&] {
    gfxg_status first = GFXG_OK;
    for (Exec &exec : o->execs) {
      const gfxg_status status = exec.destroy(c);
      if (!first) first = status;
    }
    delete o;
    c.n_objects--;
    return first;
  });
}

}  // extern "C"
