// The threads all kernels share. The caller works too, and items are claimed one at a time, so a worker that the
// operating system has put aside delays only the item it holds: with other processes on the same cores a pool that
// hands every thread a fixed part, and spins for it, becomes up to a hundred times slower.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace headway {

class Pool {
 public:
  static Pool& instance();

  // Threads that work on a job, the caller included. Takes effect with the next job.
  void resize(int num_threads);
  int size() const { return int(workers_.size()) + 1; }

  // Run task(item) for every item in 0 .. num_items - 1, in any order, and return when all are done.
  // Called from a task or while another thread's job runs, it works the items off alone.
  template <class Task>
  void run(int num_items, const Task& task) {
    run_erased(num_items, [](const void* context, int item) { (*static_cast<const Task*>(context))(item); }, &task);
  }

 private:
  using Function = void (*)(const void* context, int item);

  Pool() = default;
  void run_erased(int num_items, Function function, const void* context);
  void work_off();
  void serve(uint64_t seen);
  bool wait_for_job(uint64_t seen);
  void stop_workers();

  // One word, so that an item and the job it belongs to are claimed together:
  // job number (16 bits), items in it (24 bits), next unclaimed item (24 bits).
  std::atomic<uint64_t> ticket_{0};
  std::atomic<int> done_{0};
  Function function_ = nullptr;  // function_ and context_ change only when no item is claimed and unfinished
  const void* context_ = nullptr;

  std::mutex running_;
  std::mutex sleeping_;
  std::condition_variable wake_;
  std::atomic<int> num_sleepers_{0};
  std::atomic<bool> stopping_{false};
  std::vector<std::thread> workers_;
};

}  // namespace headway
