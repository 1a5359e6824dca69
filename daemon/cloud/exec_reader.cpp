#include "cloud/exec_reader.hpp"

#include "cloud/ndjson.hpp"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>

#include <optional>
#include <utility>

namespace sandboxd::cloud {

namespace asio = boost::asio;

namespace {

constexpr std::chrono::seconds longest_farewell{2};
constexpr std::size_t largest_farewell =
    64U << 10; // bytes after the terminal line; more is not worth a connection

// Reads the end of an answer that has said all it had to say, so that its connection can be used
// again.
asio::awaitable<void> finish_in_background(std::shared_ptr<pool> home,
                                           std::shared_ptr<connection> from,
                                           std::unique_ptr<answer_reader> reader) {
    const pool::returning on_its_way(home, from);
    from->limit_all(connection::clock::now() + longest_farewell);
    std::size_t extra = 0;
    while (!reader->done() && extra < largest_farewell) {
        const auto ec = co_await reader->read_some(*from);
        if (ec) co_return;
        extra += reader->body().size();
        reader->body().clear();
    }
    if (reader->reusable()) home->give_back(from, reader->server_idle());
}

class exec_reader final : public exec_stream {
public:
    exec_reader(std::shared_ptr<pool> home, std::shared_ptr<connection> from,
                std::unique_ptr<answer_reader> reader, std::size_t max_line, secret key)
        : home_(std::move(home)), from_(std::move(from)), reader_(std::move(reader)),
          decoder_(max_line, std::move(key)) {
        from_->unlimited();
        hand_over();
    }

    asio::awaitable<exec_event> next() override {
        while (true) {
            if (auto event = ready()) co_return std::move(*event);
            const auto ec = co_await reader_->read_some(*from_);
            if (ec) why_ = failure_of(ec, reader_->status());
            hand_over();
        }
    }

    std::optional<exec_event> ready() override {
        if (auto event = decoder_.next()) return told(std::move(*event));
        if (why_ || reader_->done()) return told(decoder_.finish(why_));
        return std::nullopt;
    }

private:
    void hand_over() {
        decoder_.append(reader_->body());
        reader_->body().clear();
    }

    exec_event told(exec_event event) {
        if (decoder_.ended()) let_go(std::holds_alternative<exec_cut>(event));
        return event;
    }

    void let_go(bool cut) {
        const auto from = std::exchange(from_, nullptr);
        if (cut || why_) return;
        if (!reader_->done()) {
            asio::co_spawn(home_->executor(), finish_in_background(home_, from, std::move(reader_)),
                           asio::detached);
        } else if (reader_->reusable()) {
            home_->give_back(from, reader_->server_idle());
        }
    }

    std::shared_ptr<pool> home_;
    std::shared_ptr<connection> from_;
    std::unique_ptr<answer_reader> reader_;
    ndjson_decoder decoder_;
    std::optional<failure> why_; // reading has failed
};

} // namespace

std::unique_ptr<exec_stream> make_exec_stream(std::shared_ptr<pool> home,
                                              std::shared_ptr<connection> from,
                                              std::unique_ptr<answer_reader> reader,
                                              std::size_t max_line, secret key) {
    return std::make_unique<exec_reader>(std::move(home), std::move(from), std::move(reader),
                                         max_line, std::move(key));
}

} // namespace sandboxd::cloud
