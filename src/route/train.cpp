#include "route/train.h"

#include <Eigen/Cholesky>
#include <Eigen/Core>
#include <Eigen/Eigenvalues>
#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

namespace sluice::route {
namespace {

using Eigen::Index;
using Eigen::MatrixXd;
using Rows = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using RowsView = Eigen::Map<const Rows>;
using Numbers = Eigen::VectorXf;

// How much a fit is held back, by the mean square of a number of the state.
constexpr std::array kRidges{1e-3, 1e-2, 1e-1, 1.0, 10.0};
constexpr Index kBlock = 256;

Index at(size_t n) {
    return static_cast<Index>(n);
}

RowsView view(const std::vector<float>& numbers, size_t rows, size_t columns) {
    return {numbers.data(), at(rows), at(columns)};
}

// Each number of the next state from the same one of this state, by least squares.
struct Diagonal {
    Numbers scale, shift, mean;  // mean of this state
};

Diagonal fit_diagonal(const RowsView& x, const RowsView& y) {
    const auto rows = static_cast<double>(x.rows());
    Diagonal d{Numbers(x.cols()), Numbers(x.cols()), Numbers(x.cols())};
    for (Index i = 0; i < x.cols(); ++i) {
        const Eigen::VectorXd a = x.col(i).cast<double>(), b = y.col(i).cast<double>();
        const double mean_a = a.sum() / rows, mean_b = b.sum() / rows;
        const double square = (a.array() - mean_a).square().sum();
        const double both = ((a.array() - mean_a) * (b.array() - mean_b)).sum();
        const double scale = square > 0 ? both / square : 0;
        d.scale[i] = static_cast<float>(scale);
        d.shift[i] = static_cast<float>(mean_b - scale * mean_a);
        d.mean[i] = static_cast<float>(mean_a);
    }
    return d;
}

// What the diagonal leaves of the router's products, as a function of the state: ridge regression, of which the
// directions are kept that explain most.
class LowRank {
  public:
    // `weight`: the router's, up to what does not change its choice.
    LowRank(const RowsView& x, const RowsView& y, const Rows& weight, const Diagonal& diagonal)
        : centred_(x.rowwise() - diagonal.mean.transpose()), weight_(weight) {
        Rows rest = y;
        rest.array() -=
            (x.array().rowwise() * diagonal.scale.transpose().array()).rowwise() + diagonal.shift.transpose().array();
        rest_ = (rest * weight.transpose()).cast<double>();
        by_token_ = x.rows() < x.cols();
        const Index n = std::min(x.rows(), x.cols());
        gram_ = MatrixXd::Zero(n, n);
        if (by_token_) {
            gram_.selfadjointView<Eigen::Lower>().rankUpdate(MatrixXd(centred_.cast<double>()));
        } else {
            for (Index r = 0; r < x.rows(); r += kBlock) {
                const Index some = std::min(kBlock, x.rows() - r);
                gram_.selfadjointView<Eigen::Lower>().rankUpdate(
                    MatrixXd(centred_.middleRows(r, some).transpose().cast<double>()));
            }
            rest_ = centred_.transpose().cast<double>() * rest_;
        }
        unit_ = gram_.diagonal().sum() / static_cast<double>(x.cols());
        const MatrixXd products = (weight * weight.transpose()).cast<double>();
        const double least = 1e-6 * products.diagonal().sum() / static_cast<double>(products.rows());
        back_.compute(products + std::max(least, 1e-30) * MatrixXd::Identity(products.rows(), products.cols()));
    }

    // Into `c`, which has the diagonal. False if there is nothing to fit.
    bool add(double ridge, uint32_t rank, const Diagonal& diagonal, Correction& c) const {
        if (!(unit_ > 0)) return false;
        MatrixXd held = gram_;
        held.diagonal().array() += ridge * unit_;
        const Eigen::LLT<MatrixXd> solver(held);
        if (solver.info() != Eigen::Success) return false;
        MatrixXd map = solver.solve(rest_);
        if (by_token_) map = centred_.transpose().cast<double>() * map;
        const Rows said = centred_ * map.cast<float>();
        MatrixXd covariance = MatrixXd::Zero(said.cols(), said.cols());
        covariance.selfadjointView<Eigen::Lower>().rankUpdate(MatrixXd(said.transpose().cast<double>()));
        const Eigen::SelfAdjointEigenSolver<MatrixXd> eigen(covariance);
        if (eigen.info() != Eigen::Success) return false;
        const Index kept = std::min({static_cast<Index>(rank), covariance.rows(), map.rows()});
        const MatrixXd directions = eigen.eigenvectors().rightCols(kept).rowwise().reverse();
        MatrixXd down = map * directions;
        MatrixXd up = weight_.transpose().cast<double>() * back_.solve(directions);
        if (!down.allFinite() || !up.allFinite()) return false;
        // The same for both, so that neither leaves the range of small numbers.
        for (Index r = 0; r < kept; ++r) {
            const double a = down.col(r).norm(), b = up.col(r).norm();
            if (!(a > 0 && b > 0)) continue;
            down.col(r) *= std::sqrt(b / a);
            up.col(r) *= std::sqrt(a / b);
        }
        c.rank = static_cast<uint32_t>(kept);
        const auto keep = [](const MatrixXd& m, std::vector<float>& to) {
            to.resize(static_cast<size_t>(m.size()));
            for (Index i = 0; i < m.size(); ++i) to[static_cast<size_t>(i)] = static_cast<float>(m.data()[i]);
        };
        keep(down, c.down);
        keep(up, c.up);
        c.round();
        for (size_t r = 0; r < c.rank; ++r) {
            double part = 0;
            for (size_t i = 0; i < c.n(); ++i)
                part += static_cast<double>(c.down[r * c.n() + i]) * static_cast<double>(diagonal.mean[at(i)]);
            for (size_t i = 0; i < c.n(); ++i) c.shift[i] -= static_cast<float>(part) * c.up[r * c.n() + i];
        }
        return true;
    }

  private:
    Rows centred_, weight_;
    MatrixXd rest_, gram_;  // by token or by number, whichever are fewer
    bool by_token_ = false;
    double unit_ = 0;
    Eigen::LLT<MatrixXd> back_;  // from products to a state that has them
};

Correction only(const Diagonal& d) {
    Correction c;
    c.scale.assign(d.scale.data(), d.scale.data() + d.scale.size());
    c.shift.assign(d.shift.data(), d.shift.data() + d.shift.size());
    return c;
}

// The router's weight, less what all experts have in common where that changes no choice.
Rows telling_weight(const RouterRule& rule) {
    Rows weight = view(rule.weight, rule.n_expert, rule.n_input);
    if (rule.scoring == RouterRule::Scoring::softmax && rule.choice_bias.empty()) {
        const Eigen::RowVectorXf common = weight.colwise().mean();
        weight.rowwise() -= common;
    }
    return weight;
}

class Judge {
  public:
    Judge(const RouterRule& rule, const Samples& samples) : rule_(rule), samples_(samples), guess_(samples.n_used) {}

    // Of what was chosen for tokens [begin, end), how much the rule names on the rows of `states` from `begin` on, as
    // `c` corrects them; nullptr: as they are.
    uint64_t hits(const std::vector<float>& states, const Correction* c, size_t begin, size_t end) {
        const RowsView weight = view(rule_.weight, rule_.n_expert, rule_.n_input);
        uint64_t hits = 0;
        Rows block, products;
        for (size_t first = begin; first < end; first += static_cast<size_t>(kBlock)) {
            const size_t some = std::min(static_cast<size_t>(kBlock), end - first);
            block.resize(at(some), at(rule_.n_input));
            for (size_t t = 0; t < some; ++t) {
                const std::span<const float> from(states.data() + (first + t) * rule_.n_input, rule_.n_input);
                const std::span<float> to(block.data() + t * rule_.n_input, rule_.n_input);
                if (c != nullptr) {
                    c->apply(from, to);
                } else {
                    std::copy(from.begin(), from.end(), to.begin());
                }
            }
            products.noalias() = block * weight.transpose();
            for (size_t t = 0; t < some; ++t) {
                if (!rule_.bias.empty())
                    products.row(at(t)) += Eigen::Map<const Eigen::RowVectorXf>(rule_.bias.data(), at(rule_.n_expert));
                rule_.choose({products.data() + t * rule_.n_expert, rule_.n_expert}, guess_);
                const auto* chosen = samples_.chosen.data() + (first + t) * samples_.n_used;
                for (const int32_t e : guess_)
                    hits += std::find(chosen, chosen + samples_.n_used, e) != chosen + samples_.n_used ? 1 : 0;
            }
        }
        return hits;
    }

  private:
    const RouterRule& rule_;
    const Samples& samples_;
    std::vector<int32_t> guess_;
};

}  // namespace

void RouterRule::choose(std::span<const float> products, std::span<int32_t> chosen) const {
    std::vector<float> scores(products.begin(), products.end());
    if (!choice_bias.empty()) {
        const float most = *std::max_element(scores.begin(), scores.end());
        float sum = 0;
        for (float& s : scores) {
            switch (scoring) {
                case Scoring::softmax:
                    s = std::exp(s - most);
                    break;
                case Scoring::sigmoid:
                    s = 1 / (1 + std::exp(-s));
                    break;
                case Scoring::root_softplus:
                    s = std::sqrt(s > 20 ? s : std::log1p(std::exp(s)));
                    break;
            }
            sum += s;
        }
        for (size_t e = 0; e < scores.size(); ++e)
            scores[e] = (scoring == Scoring::softmax ? scores[e] / sum : scores[e]) + choice_bias[e];
    }
    std::vector<int32_t> order(scores.size());
    std::iota(order.begin(), order.end(), 0);
    const auto used = std::min(chosen.size(), order.size());
    std::partial_sort(order.begin(), order.begin() + static_cast<ptrdiff_t>(used), order.end(),
                      [&](int32_t a, int32_t b) {
                          const float x = scores[static_cast<size_t>(a)], y = scores[static_cast<size_t>(b)];
                          return x > y || (x == y && a < b);
                      });
    std::copy_n(order.begin(), used, chosen.begin());
}

size_t tokens_trained(size_t tokens) {
    return tokens - tokens / 5;
}

Fit fit(const RouterRule& rule, const Samples& samples, uint32_t rank) {
    const size_t trained = tokens_trained(samples.tokens), fitted = tokens_trained(trained);
    const RowsView x = view(samples.from, samples.tokens, samples.n_input);
    const RowsView y = view(samples.to, samples.tokens, samples.n_input);
    const Rows weight = telling_weight(rule);
    Judge judge(rule, samples);

    // Which fit is best for tokens that it has not seen: none, the diagonal, or that with so much of the rest.
    enum : int { kNone = -2, kDiagonal = -1 };
    int best = kNone;
    {
        const RowsView some_x(x.data(), at(fitted), x.cols()), some_y(y.data(), at(fitted), y.cols());
        const Diagonal diagonal = fit_diagonal(some_x, some_y);
        uint64_t most = judge.hits(samples.from, nullptr, fitted, trained);
        const auto try_out = [&](int which, const Correction& c) {
            const uint64_t hits = judge.hits(samples.from, &c, fitted, trained);
            if (hits <= most) return;
            most = hits;
            best = which;
        };
        try_out(kDiagonal, only(diagonal));
        if (rank > 0) {
            const LowRank low(some_x, some_y, weight, diagonal);
            // The most held back first: of equals it is kept.
            for (size_t i = kRidges.size(); i-- > 0;) {
                Correction c = only(diagonal);
                if (low.add(kRidges[i], rank, diagonal, c)) try_out(static_cast<int>(i), c);
            }
        }
    }

    Fit out;
    if (best != kNone) {
        const RowsView all_x(x.data(), at(trained), x.cols()), all_y(y.data(), at(trained), y.cols());
        const Diagonal diagonal = fit_diagonal(all_x, all_y);
        Correction c = only(diagonal);
        if (best == kDiagonal ||
            LowRank(all_x, all_y, weight, diagonal).add(kRidges[static_cast<size_t>(best)], rank, diagonal, c))
            out.correction = std::move(c);
    }
    HeldOut& h = out.held_out;
    h.slots = (samples.tokens - trained) * samples.n_used;
    h.stale = judge.hits(samples.from, nullptr, trained, samples.tokens);
    h.trained = out.correction ? judge.hits(samples.from, &*out.correction, trained, samples.tokens) : h.stale;
    h.control = judge.hits(samples.to, nullptr, trained, samples.tokens);
    return out;
}

}  // namespace sluice::route
