// The shim's words, from a place that untrusted code controls: whatever comes, there is a verdict
// in the end, positions never go back, nothing is run again once the shim has been heard, and
// memory is bounded.
#include "core/shim_frames.hpp"
#include "core/shim_link.hpp"
#include "fuzz.hpp"

#include <chrono>
#include <cstdint>
#include <optional>
#include <variant>

namespace fuzz {
namespace {

using namespace sandboxd;
using link = core::shim_link;

constexpr std::size_t most_memory = 1U << 20; // of parser and link; a frame is 64 KiB at the most
constexpr int answers = 12;                   // after so many the platform is down for good
constexpr int most_steps = 200'000;           // of one command; far more than limits allow

cloud::failure random_failure(chance& by) {
    constexpr int kinds = static_cast<int>(cloud::failure_kind::bad_answer) + 1;
    return {static_cast<cloud::failure_kind>(by.below(kinds)), 0, "trouble",
            by.one_in(4) ? std::optional(std::chrono::seconds(by.below(3600))) : std::nullopt};
}

// One command's life against a platform and a sandbox that say anything.
class life {
public:
    explicit life(chance& by) : by_(by), link_(by.one_in(2), from(by)), pos_(link_.pos()) {}

    void live() {
        link::step step = link_.begin();
        for (int n = 0;; ++n) {
            require(n < most_steps, "no verdict");
            require(link_.pos() >= pos_, "the position went back");
            require(memory_in_use() < before_ + most_memory, "memory grows");
            pos_ = link_.pos();
            switch (step.what) {
            case link::action::ended:
                verdict();
                return;
            case link::action::refused:
                require(!data_seen_ && step.failure.has_value(), "refused what has run");
                return;
            case link::action::unusable:
                require(!data_seen_, "called unusable what has run");
                return;
            case link::action::deliver:
                take(step.data);
                step = read();
                break;
            default:
                step = perform(step);
            }
        }
    }

private:
    static std::optional<std::uint64_t> from(chance& by) {
        return by.one_in(4) ? std::optional<std::uint64_t>(by.below(100)) : std::nullopt;
    }

    link::step perform(const link::step& step) {
        switch (step.what) {
        case link::action::install:
            return by_.one_in(4)   ? link_.on_install_failed(now_, random_failure(by_))
                   : by_.one_in(8) ? link_.on_not_installed("noexec", by_.one_in(2))
                                   : link_.on_installed();
        case link::action::run:
            require(!data_seen_, "run again after output came");
            return post();
        case link::action::follow:
            return post();
        case link::action::wait:
            require(step.delay >= core::milliseconds(0), "a negative wait");
            now_ += step.delay;
            return link_.on_waited();
        default:
            return read();
        }
    }

    link::step post() {
        now_ += core::milliseconds(by_.below(50));
        if (++posts_ > answers) {
            return link_.on_post_failed(
                now_, {cloud::failure_kind::unreachable, 0, "down for good", std::nullopt});
        }
        if (by_.one_in(5)) {
            return link_.on_post_failed(now_, random_failure(by_));
        }
        parser_ = core::shim_parser();
        text_ = by_.one_in(12) ? "" : mutated(by_, going_on(by_.of(seeds())), seeds());
        left_ = pieces(by_, text_);
        next_ = 0;
        return link_.on_answering();
    }

    // So that some streams fit where the last one ended, the positions in a seed are moved.
    std::string going_on(std::string text) {
        const std::size_t at = text.find(" pos=0 out=0 err=0");
        if (pos_ == 0 || at == std::string::npos || by_.one_in(3)) {
            return text;
        }
        const std::string here = std::to_string(pos_);
        text.replace(at, 18, " pos=" + here + " out=" + here + " err=0");
        if (by_.one_in(2)) {
            text.resize(text.find('\n') + 1);
            text += "o " + here + " " + here + " r 3\nabc\n";
        }
        return text;
    }

    link::step read() {
        for (;;) {
            if (const auto frame = parser_.next()) {
                check(*frame);
                return link_.on_frame(now_, *frame);
            }
            if (!parser_.broken().empty()) {
                require(!parser_.next(), "a frame after nonsense");
                return link_.on_nonsense(now_, parser_.broken());
            }
            if (next_ == left_.size()) {
                break;
            }
            now_ += core::milliseconds(by_.below(3));
            parser_.feed(left_[next_++]);
        }
        return by_.one_in(2) ? link_.on_cut(now_, "cut")
                             : link_.on_terminal(now_, "ended with code 127", by_.one_in(2));
    }

    void check(const core::shim_frame& frame) {
        if (const auto* data = std::get_if<core::shim_data>(&frame)) {
            require(!data->bytes.empty() && data->bytes.size() <= 65536, "size of a data frame");
            require(data->pos + data->bytes.size() == parser_.pos(), "position of a data frame");
            require(data->offset <= data->pos, "offset of a data frame");
        } else {
            require(parser_.hello_seen(), "a frame before the greeting");
        }
    }

    void take(const core::shim_data& data) {
        require(data.pos + data.bytes.size() == pos_, "output delivered at another place");
        data_seen_ = true;
    }

    void verdict() {
        const core::exec_exit& exit = link_.exit();
        const bool known =
            exit.reason != core::exit_reason::lost && exit.reason != core::exit_reason::failed;
        require(exit.returncode.has_value() == known, "a code exactly where the end is known");
        require(exit.error.has_value() == !known, "an error exactly where it is not");
        if (exit.returncode) {
            require(*exit.returncode >= 0 && *exit.returncode <= 255, "a code no shell would tell");
        }
        require(!data_seen_ || exit.ran != core::started::no, "it has printed and not run");
        require(link_.dropped() <= link_.pos(), "more dropped than there was");
    }

    chance& by_;
    std::size_t before_ = memory_in_use();
    link link_;
    core::shim_parser parser_;
    core::milliseconds now_{0};
    std::uint64_t pos_;
    std::string text_;
    std::vector<std::string_view> left_;
    std::size_t next_ = 0;
    int posts_ = 0;
    bool data_seen_ = false;
};

} // namespace

void shim(chance& by) {
    seeds();
    life(by).live();
}

} // namespace fuzz
