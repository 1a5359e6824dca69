// The platform's own attached exec. See line.hpp.
#pragma once

#include "exec/line.hpp"
#include "exec/upload.hpp"
#include "sandbox/account.hpp"

#include <chrono>
#include <memory>

namespace sandboxd::exec {

class attached_line final : public line {
public:
    // `files` put its uploads; there if it has any. `server_limit`: the platform's own clock for
    // it.
    attached_line(sandbox::account& account, std::string sandbox_id, std::string exec_id,
                  core::prepared_command command, std::shared_ptr<start_files> files,
                  std::chrono::seconds server_limit);
    // Of one that an earlier daemon has sent: to end it.
    attached_line(sandbox::account& account, std::string sandbox_id, std::string exec_id);

    boost::asio::awaitable<line_opened> open() override;
    boost::asio::awaitable<line_event> next() override;
    boost::asio::awaitable<kill_outcome> kill(core::kill_signal signal) override;
    void hang_up() noexcept override { stream_.reset(); }
    bool attached() const noexcept override { return true; }

private:
    sandbox::account& account_;
    std::string sandbox_id_;
    std::string exec_id_;
    core::prepared_command command_;
    std::shared_ptr<start_files> files_;
    std::chrono::seconds server_limit_{0};
    bool sent_ = false;
    bool given_up_ = false; // before it was
    std::unique_ptr<cloud::exec_stream> stream_;
};

} // namespace sandboxd::exec
