#include "pool.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace headway {
namespace {

constexpr uint64_t kField = (uint64_t(1) << 24) - 1;
constexpr int kSpins = 1500;  // some 30 microseconds: kernels of one step follow each other faster than that

int next_item(uint64_t ticket) { return int(ticket & kField); }
int items_in(uint64_t ticket) { return int((ticket >> 24) & kField); }
uint64_t job_of(uint64_t ticket) { return ticket >> 48; }

void relax() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

}  // namespace

Pool& Pool::instance() {
  static Pool* pool = new Pool;  // never destroyed: at exit its threads end with the process
  return *pool;
}

void Pool::stop_workers() {
  stopping_ = true;
  {
    std::lock_guard<std::mutex> lock(sleeping_);
    wake_.notify_all();
  }
  for (std::thread& worker : workers_) worker.join();
  workers_.clear();
  stopping_ = false;
}

void Pool::resize(int num_threads) {
  std::lock_guard<std::mutex> lock(running_);
  if (num_threads == size()) return;
  stop_workers();
  const uint64_t seen = job_of(ticket_.load());
  for (int i = 1; i < num_threads; ++i) workers_.emplace_back([this, seen] { serve(seen); });
}

void Pool::run_erased(int num_items, Function function, const void* context) {
  std::unique_lock<std::mutex> lock(running_, std::try_to_lock);
  if (!lock.owns_lock() || num_items < 2 || workers_.empty()) {
    for (int item = 0; item < num_items; ++item) function(context, item);
    return;
  }
  function_ = function;
  context_ = context;
  done_.store(0, std::memory_order_relaxed);
  const uint64_t job = (job_of(ticket_.load(std::memory_order_relaxed)) + 1) & 0xffff;
  ticket_.store((job << 48) | (uint64_t(num_items) << 24));
  if (num_sleepers_.load() > 0) {
    std::lock_guard<std::mutex> sleepers(sleeping_);
    wake_.notify_all();
  }
  work_off();
  for (int spins = 0; done_.load(std::memory_order_acquire) != num_items; ++spins) {
    if (spins < kSpins) relax();
    else std::this_thread::yield();  // perhaps the worker we wait for was put aside by this very thread
  }
}

void Pool::work_off() {
  for (;;) {
    uint64_t ticket = ticket_.load(std::memory_order_acquire);
    if (next_item(ticket) >= items_in(ticket)) return;
    ticket = ticket_.fetch_add(1, std::memory_order_acq_rel);
    if (next_item(ticket) >= items_in(ticket)) return;
    function_(context_, next_item(ticket));
    done_.fetch_add(1, std::memory_order_release);
  }
}

bool Pool::wait_for_job(uint64_t seen) {
  const auto changed = [&] { return stopping_.load() || job_of(ticket_.load()) != seen; };
  for (int spins = 0; spins < kSpins; ++spins) {
    if (changed()) return !stopping_.load();
    relax();
  }
  std::unique_lock<std::mutex> lock(sleeping_);
  ++num_sleepers_;
  wake_.wait(lock, changed);
  --num_sleepers_;
  return !stopping_.load();
}

void Pool::serve(uint64_t seen) {
  while (wait_for_job(seen)) {
    seen = job_of(ticket_.load());
    work_off();
  }
}

}  // namespace headway

extern "C" void headway_set_num_threads(int num_threads) { headway::Pool::instance().resize(num_threads); }
extern "C" int headway_get_num_threads() { return headway::Pool::instance().size(); }
