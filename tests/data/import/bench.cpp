#include <benchmark/benchmark.h>

#include <cstdlib>
#include <cstring>
#include <vector>

// SPIN: how often the work is done, so that a head can be slower than its base.
static const int spin = std::getenv("SPIN") ? std::atoi(std::getenv("SPIN")) : 1;

static void sum(benchmark::State& state) {
  std::vector<double> values(state.range(0), 1.0);
  for (auto _ : state)
    for (int turn = 0; turn < spin; ++turn) {
      double total = 0;
      for (double value : values) benchmark::DoNotOptimize(total += value);
    }
  state.SetBytesProcessed(state.iterations() * values.size() * sizeof(double));
  state.SetItemsProcessed(state.iterations() * values.size());
  state.counters["turns"] = spin;
}
BENCHMARK(sum)->ArgName("n")->Arg(1 << 10)->Arg(1 << 14)->Unit(benchmark::kMicrosecond);

template <class T>
static void copy(benchmark::State& state) {
  std::vector<T> from(1 << 14), to(1 << 14);
  for (auto _ : state) {
    std::memcpy(to.data(), from.data(), from.size() * sizeof(T));
    benchmark::ClobberMemory();
  }
}
BENCHMARK_TEMPLATE(copy, std::vector<int>::value_type)->UseRealTime();

static void stamped(benchmark::State& state) {
  for (auto _ : state) state.SetIterationTime(2e-3);
}
BENCHMARK(stamped)->UseManualTime()->Iterations(3);

static void broken(benchmark::State& state) { state.SkipWithError("no such device"); }
BENCHMARK(broken);

static void scan(benchmark::State& state) {
  for (auto _ : state)
    for (int i = 0; i < state.range(0); ++i) benchmark::DoNotOptimize(i);
  state.SetComplexityN(state.range(0));
}
BENCHMARK(scan)->Arg(256)->Arg(1024)->Complexity(benchmark::oN);

BENCHMARK_MAIN();
