// How rows are spread over a device: facts that the kernels rely on, for every length. No kernel runs here.
#include "evenkeel/detail/launch_plan.hpp"

#include "support/catch.hpp"

#include <string>
#include <vector>

namespace ek = evenkeel;
using namespace ek::detail;
using ek::CudaFacts;
using ek::Index;

namespace {

// What the types of a pass decide: bytes that a thread keeps of each element, elements of one full access, sums over
// rows.
struct PassKind {
  const char* name;
  int full, held, sums, sum_bytes;
};
const PassKind kinds[] = {
    {"float forward", 4, 4, 0, 4},
    {"float forward of a sum", 4, 8, 0, 4},
    {"float backward", 4, 16, 2, 4},
    {"float backward without bias", 4, 12, 1, 4},
    {"float backward of a sum", 4, 20, 2, 4},
    {"bfloat16 forward", 8, 2, 0, 4},
    {"bfloat16 forward of a sum", 8, 4, 0, 4},
    {"bfloat16 backward", 8, 12, 2, 4},
    {"bfloat16 backward of a sum", 8, 14, 2, 4},
    {"bfloat16 to float", 4, 2, 0, 4},
    {"double forward", 2, 8, 0, 8},
    {"double backward", 2, 32, 2, 8},
    {"double backward of a sum", 2, 40, 2, 8},
};

// The default, one that has no clusters, and ones with few multiprocessors.
const CudaFacts devices[] = {{}, {108, 166912, 80}, {1, 232448, 90}, {16, 101376, 75}};

RowProblem problem(const PassKind& kind, Index rows, Index length, int vector, bool strided = false) {
  return {rows, length, vector, kind.full, kind.held, kind.sums, kind.sum_bytes, strided};
}

// The accesses that a type's rows of this length may have: `full`, 2, 1.
std::vector<int> vectors(const PassKind& kind, Index length) {
  std::vector<int> all;
  for (const int v : {kind.full, 2, 1})
    if (length % v == 0 && (all.empty() || all.back() != v)) all.push_back(v);
  return all;
}

bool is_power_of_two(Index n) { return n > 0 && (n & (n - 1)) == 0; }

// The packs of the kernel that a plan's scope, bound and width of access name.
int packs_of_kernel(const RowPlan& plan, const PassKind& kind) {
  const bool fixed = plan.vector < kind.full || plan.scope == RowScope::cluster || plan.bound > 256;
  return fixed ? most_packs(plan.bound, plan.vector, kind.full, kind.held) : plan.packs;
}

// Why a plan is wrong; empty where it is right.
std::string fault(const RowPlan& plan, const RowProblem& p, const PassKind& kind, const CudaFacts& facts) {
  if (plan.threads < 32 || plan.threads % 32 != 0 || plan.threads > plan.bound) return "threads";
  if (plan.cluster != 1 && plan.scope != RowScope::cluster) return "cluster of a scope without clusters";
  if (plan.blocks < 1 || plan.blocks > 2147483647 || plan.blocks % plan.cluster != 0) return "blocks";
  if (plan.shared > facts.shared_bytes) return "shared memory";
  if (plan.parts > most_parts(p.rows, p.length, facts)) return "more parts than scratch has";
  if ((p.sums > 0) != (plan.parts > 0)) return "parts";
  if (p.strided && plan.scope != RowScope::stream) return "strided rows do not stream";
  if (plan.scope == RowScope::stream) {
    if (plan.threads != stream_bound || plan.cluster != 1) return "threads of a stream";
    if (plan.vector != 1 && (plan.vector != kind.full || p.vector != kind.full || p.strided)) return "vector";
    return quotient_up(p.length, feature_bound) * plan.parts > 2147483647 ? "blocks of the feature kernel" : "";
  }
  if (plan.vector != p.vector) return "vector";
  if (p.sums > 0 && plan.blocks != plan.parts * plan.cluster) return "a block without a part of its own";
  if (!takes_bound(plan.bound, plan.vector, kind.full, kind.held)) return "no kernel for that bound";
  const int most = most_packs(plan.bound, plan.vector, kind.full, kind.held);
  if (!is_power_of_two(plan.packs) || plan.packs > most) return "no kernel for that many packs";
  if (plan.vector < kind.full && plan.packs != most) return "narrow accesses have one number of packs";
  if (plan.vector * most * kind.held > held_budget(plan.bound)) return "too many registers";
  // A block of a cluster has ceil(accesses / cluster) of them; thread `lane` has number pack * lanes + lane.
  const Index accesses = p.length / plan.vector, share = quotient_up(accesses, plan.cluster);
  if (share > Index(plan.packs) * plan.lanes) return "elements that no thread has";
  if (share > Index(packs_of_kernel(plan, kind)) * plan.lanes) return "elements that no thread of the kernel has";
  if (plan.scope == RowScope::lanes) {
    if (!is_power_of_two(plan.lanes) || plan.lanes > 32) return "lanes";
    if (plan.bound != lane_bound || plan.threads != lane_bound) return "threads of the lanes' kernel";
    if (p.sums > 0 && plan.shared != p.sums * p.sum_bytes * sums_pitch(p.length)) return "room for the sums";
    // Enough blocks for all rows, or blocks that loop.
    if (p.sums == 0 && p.rows < 1000000 && plan.blocks * plan.rows_per_block() < p.rows) return "rows without a block";
  } else {
    if (plan.lanes != plan.threads) return "all threads of a block share its row";
    if (plan.shared != 0) return "shared memory that nobody uses";
  }
  if (plan.scope == RowScope::block && plan.bound != 256 && plan.bound != 512 && plan.bound != 1024) return "bound";
  if (plan.scope == RowScope::cluster) {
    if (facts.architecture < 90) return "clusters before sm_90";
    if (plan.cluster != 2 && plan.cluster != 4 && plan.cluster != 8) return "blocks of a cluster";
    if (plan.vector != kind.full || plan.bound != 256) return "kernel of a cluster";
  }
  return "";
}

// Every element counted by the slot (block of the cluster, pack, lane) that has it.
bool each_once(const RowPlan& plan, const RowProblem& p, const PassKind& kind) {
  std::vector<int> owners(std::size_t(p.length), 0);
  const Index part = quotient_up(p.length / plan.vector, plan.cluster) * plan.vector;
  for (Index rank = 0; rank < plan.cluster; ++rank)
    for (Index pack = 0; pack < packs_of_kernel(plan, kind); ++pack)
      for (Index lane = 0; lane < plan.lanes; ++lane) {
        const Index within = (pack * plan.lanes + lane) * plan.vector, begin = rank * part + within;
        for (Index i = begin; within < part && begin < p.length && i < begin + plan.vector; ++i)
          ++owners.at(std::size_t(i));
      }
  for (const int count : owners)
    if (count != 1) return false;
  return true;
}

void check(const RowProblem& p, const PassKind& kind, const CudaFacts& facts, bool each) {
  const RowPlan plan = plan_rows(p, facts);
  const std::string why = fault(plan, p, kind, facts);
  const bool once = !each || plan.scope == RowScope::stream || each_once(plan, p, kind);
  if (why.empty() && once && plan == plan_rows(p, facts)) return;
  INFO(kind.name << ", " << p.rows << " x " << p.length << ", accesses of " << p.vector << ", sm_" << facts.architecture
                 << ": " << text(plan));
  CHECK(why == "");
  CHECK(once);
  CHECK(plan == plan_rows(p, facts));
}

}  // namespace

TEST_CASE("plan: every length gives a plan that the kernels can run", "[cuda]") {
  std::vector<Index> lengths;
  for (Index n = 1; n <= 5000; ++n) lengths.push_back(n);
  for (const Index n :
       {8192, 10000, 16384, 16385, 20480, 32768, 32769, 32770, 40960, 65536, 65544, 131072, 262144, 262152, 300000})
    lengths.push_back(n);
  std::size_t checked = 0;
  for (const PassKind& kind : kinds)
    for (const Index length : lengths)
      for (const int vector : vectors(kind, length))
        for (const CudaFacts& facts : devices) {
          const bool each = length <= 300 || length > 5000 || length % 64 <= 1;
          check(problem(kind, length % 7 == 0 ? 1 : 1 + length * 13 % 5000, length, vector), kind, facts, each);
          ++checked;
        }
  CHECK(checked > 400000);
}

TEST_CASE("plan: any number of rows has a grid", "[cuda]") {
  for (const PassKind& kind : kinds)
    for (const Index length : {1, 96, 768, 4096, 8192, 40960, 300000})
      for (const Index rows : {Index(1), Index(2), Index(131), Index(2147483647), Index(2147483648), Index(1) << 40})
        for (const CudaFacts& facts : devices)
          for (const int vector : vectors(kind, length)) {
            check(problem(kind, rows, length, vector), kind, facts, false);
            check(problem(kind, rows, length, 1, true), kind, facts, false);
          }
}

TEST_CASE("plan: strided rows stream", "[cuda]") {
  for (const PassKind& kind : kinds)
    for (const Index length : {1, 31, 768, 300000}) {
      const RowPlan plan = plan_rows(problem(kind, 77, length, 1, true), {});
      CHECK(plan.scope == RowScope::stream);
      CHECK(plan.vector == 1);
      CHECK(plan.blocks == 77);
      CHECK(plan.parts == (kind.sums > 0 ? 3 : 0));  // of 32 rows
    }
}

TEST_CASE("plan: neighbouring strided rows lie across the lanes", "[cuda]") {
  for (const PassKind& kind : kinds)
    for (const CudaFacts& facts : devices)
      for (const Index rows : {1, 32, 33, 100000}) {
        RowProblem p = problem(kind, rows, 768, 1, true);
        p.touching = true;
        const RowPlan plan = plan_rows(p, facts);
        INFO(text(plan));
        CHECK(plan.scope == RowScope::across);
        CHECK(plan.threads == across_bound);
        CHECK(plan.rows_per_block() * plan.lanes == across_bound);
        const Index tiles = (rows + 31) / 32;
        CHECK(plan.parts == (kind.sums > 0 ? plan.blocks : 0));
        CHECK(plan.parts <= most_parts(rows, 768, facts));
        CHECK((kind.sums > 0 ? plan.blocks <= tiles : plan.blocks == tiles));
        p.strided = false;
        CHECK(plan_rows(p, facts).scope != RowScope::across);
      }
}

TEST_CASE("plan: longer rows go from lanes to a block to a cluster to a stream", "[cuda]") {
  for (const PassKind& kind : kinds) {
    INFO(kind.name);
    RowScope before = RowScope::lanes;
    for (Index length = kind.full; length < 600000; length += length < 10000 ? kind.full : 2048) {
      const RowPlan plan = plan_rows(problem(kind, 100, length, kind.full), {});
      if (plan.scope < before) FAIL("a shorter row of scope " << text(plan));
      before = plan.scope;
    }
    CHECK(before == RowScope::stream);
  }
}

// The lengths that the file's table gives for bfloat16 data that is read once.
TEST_CASE("plan: the last length of each scope", "[cuda]") {
  const PassKind kind{"bfloat16 forward", 8, 2, 0, 4};
  const auto scope = [&](Index length) { return plan_rows(problem(kind, 100, length, 8), {}).scope; };
  CHECK(scope(2048) == RowScope::lanes);
  CHECK(scope(2056) == RowScope::block);
  CHECK(scope(32768) == RowScope::block);
  CHECK(scope(32776) == RowScope::cluster);
  CHECK(scope(65536) == RowScope::cluster);
  CHECK(scope(65544) == RowScope::stream);
}

// By hand from the budgets: 384 bytes a thread in blocks of up to 256, 96 in blocks of 1024, and two accesses a thread
// are wanted before a row takes more lanes.
TEST_CASE("plan: known plans", "[cuda]") {
  const PassKind forward{"bfloat16 forward", 8, 2, 0, 4}, backward{"bfloat16 backward", 8, 12, 2, 4};
  const auto plan = [](const PassKind& kind, Index rows, Index length, int vector) {
    return text(plan_rows(problem(kind, rows, length, vector), {}));
  };
  CHECK(plan(forward, 8192, 768, 8) ==
        "lanes: lanes 32, packs 4, vector 8, threads 128, bound 128, cluster 1, blocks 2048, shared 0, parts 0");
  CHECK(plan(backward, 8192, 768, 8) ==
        "lanes: lanes 32, packs 4, vector 8, threads 128, bound 128, cluster 1, blocks 396, shared 6144, parts 396");
  CHECK(plan(forward, 8192, 4096, 8) ==
        "block: lanes 256, packs 2, vector 8, threads 256, bound 256, cluster 1, blocks 8192, shared 0, parts 0");
  CHECK(plan(backward, 8192, 4096, 8) ==
        "block: lanes 256, packs 2, vector 8, threads 256, bound 256, cluster 1, blocks 264, shared 0, parts 264");
  CHECK(plan(backward, 100, 4096, 8) ==
        "block: lanes 256, packs 2, vector 8, threads 256, bound 256, cluster 1, blocks 100, shared 0, parts 100");
  CHECK(plan(forward, 1000, 64, 8) ==
        "lanes: lanes 4, packs 2, vector 8, threads 128, bound 128, cluster 1, blocks 32, shared 0, parts 0");
  CHECK(plan(forward, 1000, 31, 1) ==
        "lanes: lanes 8, packs 4, vector 1, threads 128, bound 128, cluster 1, blocks 63, shared 0, parts 0");
  CHECK(plan(forward, 10, 32768, 8) ==
        "block: lanes 1024, packs 4, vector 8, threads 1024, bound 1024, cluster 1, blocks 10, shared 0, parts 0");
  CHECK(plan(forward, 10, 40960, 8) ==
        "cluster: lanes 256, packs 4, vector 8, threads 256, bound 256, cluster 8, blocks 80, shared 0, parts 0");
  CHECK(plan(backward, 1000, 16384, 8) ==
        "cluster: lanes 256, packs 4, vector 8, threads 256, bound 256, cluster 2, blocks 132, shared 0, parts 66");
  CHECK(plan(backward, 3000, 300000, 8) ==
        "stream: lanes 256, packs 1, vector 8, threads 256, bound 256, cluster 1, blocks 3000, shared 0, parts 64");
}

TEST_CASE("plan: scratch for sums over rows holds every plan's parts", "[cuda]") {
  CHECK(sums_pitch(1) == 32);
  CHECK(sums_pitch(32) == 32);
  CHECK(sums_pitch(33) == 64);
  CHECK(most_parts(5, 768, {}) == 5);
  CHECK(most_parts(100000, 768, {}) == 528);   // four blocks of 128 threads for each of 132 multiprocessors
  CHECK(most_parts(100000, 4096, {}) == 264);  // two of 256
  CHECK(most_parts(100000, 4096, {1, 232448, 90}) == 64);
}
