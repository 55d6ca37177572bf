// How many stages the next encode of a tensor has, and what they aim at: the controller and the plans
// of rust/core/src/fit, which say why.
#pragma once

#include "fit/thresholds.cuh"

namespace gradwire {

__host__ __device__ inline double root(double x, std::uint32_t k) {
    return k == 1 ? x : libm::pow(x, 1.0 / static_cast<double>(k));
}

// The most stages that are ever useful for a share.
__host__ inline std::uint32_t max_stages(double delta) {
    const double halvings = ceil(-libm::log2(delta));
    if (!(halvings >= 1.0)) return 1;
    return halvings > 63.0 ? 63 : static_cast<std::uint32_t>(halvings);
}

// Stages of a new controller, and the most it may have.
__host__ inline void set_stages(Sparsify& options, double delta, std::uint32_t fixed) {
    if (options.mode == StageMode::fixed) {
        options.start_stages = options.most_stages = fixed > 1 ? fixed : 1;
    } else if (options.mode == StageMode::paper) {
        options.start_stages = 1;
        options.most_stages = max_stages(delta);
    } else if (options.mode == StageMode::tracking) {
        options.start_stages = options.most_stages = 3;
    } else {
        const double reach = options.distribution == Distribution::exponential ? 13.0 : 130.0;
        const double stages = ceil(libm::log(0.5 * 0.25 / delta) / libm::log(reach) - 0.1);
        options.start_stages = 3 + (stages > 16.0 ? 16 : stages > 0.0 ? static_cast<std::uint32_t>(stages) : 0);
        options.most_stages = options.start_stages + 4;
    }
}

__host__ __device__ inline Controller new_controller(const Sparsify& options) {
    Controller controller{};
    controller.stages = options.start_stages;
    controller.last = 1.0;
    return controller;
}

// The stages of one encode, handed out one by one.
struct StagePlan {
    double first;
    double later;   // a share of the survivors, or entries to come to
    bool entries;
    std::uint32_t left;

    // The share of the survivors for the next stage; NaN when the stages are done.
    __host__ __device__ double next(std::uint64_t survivors) {
        if (left == 0) return libm::not_a_number();
        const double rho = entries ? towards(later / static_cast<double>(survivors)) : later;
        left -= 1;
        return rho < 1.0 ? rho : libm::not_a_number();
    }

    // Entries expected above the threshold of a stage of a plan that has not begun.
    __host__ __device__ double expected(std::uint64_t numel, std::uint32_t stage) const {
        StagePlan plan = *this;
        double above = first * static_cast<double>(numel);
        for (std::uint32_t i = 1; i < stage; ++i) {
            const double rho = plan.next(static_cast<std::uint64_t>(above));
            if (rho != rho) break;
            above *= rho;
        }
        return above;
    }

  private:
    __host__ __device__ double towards(double share) const {
        constexpr double last_ratio = 0.7;
        constexpr std::uint32_t last = 2;
        const double equal = root(share, left);
        if (left <= last || equal > last_ratio) return equal;
        return root(share / libm::pow(last_ratio, static_cast<double>(last)), left - last);
    }
};

__host__ __device__ GRADWIRE_APART inline StagePlan plan_stages(const Sparsify& options, const Controller& controller,
                                                 std::uint64_t target, std::uint64_t numel) {
    const double wanted = static_cast<double>(target), n = static_cast<double>(numel);
    const std::uint32_t stages = controller.stages;
    if (options.mode == StageMode::fixed || options.mode == StageMode::paper) {
        const double delta = wanted / n;
        if (stages <= 1 || delta >= options.first_ratio) return {delta, 1.0, false, 0};
        return {options.first_ratio, root(delta / options.first_ratio, stages - 1), false, stages - 1};
    }
    const double entries = wanted * libm::exp(controller.aim), delta = smaller(entries / n, 1.0);
    if (stages <= 1) return {delta, entries, true, 0};
    const double first = greater(options.first_ratio, smaller(2.0 * delta, 0.5 * (1.0 + delta)));
    return {first, entries, true, stages - 1};
}

// Learns from an encode: entries above the fitted threshold over entries wanted.
__device__ inline void observe(const Sparsify& options, Controller& controller, double achieved) {
    if (achieved != achieved) return;
    controller.last = clamp(achieved, 0.0, 1.7976931348623157e308);
    if (options.mode == StageMode::fixed) return;
    if (options.mode == StageMode::paper) {
        controller.sum += controller.last;
        controller.seen += 1;
        if (controller.seen < 5) return;
        const double mean = controller.sum / 5.0;
        if (mean > 1.0 + 0.2) {
            controller.stages = controller.stages - 1 > 1 ? controller.stages - 1 : 1;
        } else if (mean < 1.0 - 0.2) {
            controller.stages = controller.stages + 1 < options.most_stages ? controller.stages + 1 : options.most_stages;
        }
        controller.sum = 0.0;
        controller.seen = 0;
        return;
    }
    constexpr double band = 0.223;
    const double miss = libm::log(clamp(controller.last, 1e-6, 1e6));
    const double gain = controller.seen > 0 && fabs(miss) > band ? 0.6 : 0.25;
    controller.aim = clamp(controller.aim - gain * clamp(miss, -0.5, 0.5), -1.5, 1.5);
    controller.seen = fabs(miss) > band ? (controller.seen + 1 < 3 ? controller.seen + 1 : 3) : 0;
    if (controller.stages < options.most_stages && (controller.seen >= 3 || fabs(controller.aim) > 0.25)) {
        controller.stages += 1;
        controller.seen = 0;
        controller.aim *= 0.5;
    }
}

// Learns whether a fit was of use.
__device__ inline void judge(Controller& controller, bool inside) {
    if (inside) {
        if (controller.misses > 0) controller.misses -= 1;
        if (controller.misses == 0) controller.rests = 0;
        return;
    }
    controller.misses += 1;
    if (controller.misses == 16) {
        controller.misses -= 1;
        controller.rest = 64u << controller.rests;
        controller.rests = controller.rests + 1 < 4 ? controller.rests + 1 : 4;
        controller.aim = 0.0;
    }
}

}  // namespace gradwire
