// Files in and out of sandboxes: push (remembered), put, get, pull, delete.
//
// Lives as long as the daemon. What changes files of a sandbox belongs to nobody but itself:
// whoever asked for it may leave, it goes on; asked for again, it waits for the first one and then
// finds nothing to do. What is fetched is put in place only for somebody who is still there: for
// anybody else the file of that name may be his own by then. A transfer holds its sandbox (a lease)
// while it talks to it. What changes files of one key goes one after the other.
//
// Errors are rpc_error; single paths that could not be transferred are named in the results.
// Everything may be repeated at any time: files appear whole or not at all, and what is remembered
// is written down last.
#pragma once

#include "core/mark_board.hpp"
#include "core/sandbox_record.hpp"
#include "sandbox/account.hpp"
#include "sandbox/manager.hpp"
#include "sync/scan.hpp"

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sandboxd::sync {

struct transfer_progress {
    std::string_view phase; // as in protocol/methods/fs.progress.json
    std::uint64_t done = 0; // bytes
    std::optional<std::uint64_t> total;
};
// Who wants to know how a transfer gets on; each may be empty.
struct listeners {
    std::function<void(const transfer_progress&)> on_transfer;
    sandbox::progress_callback on_sandbox;
    std::function<bool()> still_there; // of a fetch: whether they would still hear the answer
};

struct push_request {
    core::sandbox_key key;
    std::vector<path_pair> files;
    bool force = false;   // send what is remembered as unchanged too
    bool remember = true; // keep a manifest; without, everything is sent and nothing remembered
    // A single file goes into the directory that is where it is to be, under its name here.
    bool into_directory = false;
    sandbox::wanted want; // if there is no sandbox yet
};
struct push_result {
    std::uint64_t sent = 0; // files and links
    std::uint64_t unchanged = 0;
    std::uint64_t bytes = 0;      // of content sent
    std::uint64_t wire_bytes = 0; // that travelled for it
    std::vector<skipped_path> skipped;
    std::string sandbox_id; // empty: nothing had to be sent, and there is no sandbox
    std::string into;       // where that file is, if there was such a directory
};

struct fetch_request {
    core::sandbox_key key;
    std::string remote; // as workspace_path() gives it
    std::string host;   // absolute
    bool as_tar = false;
    std::optional<std::uint64_t> max_bytes;
    bool changed_only = false;               // no files with the content that was pushed
    std::optional<std::uint64_t> generation; // of the sandbox, if only that one will do
};
struct fetch_result {
    bool directory = false;
    std::uint64_t files = 0;
    std::uint64_t bytes = 0;
    std::uint64_t wire_bytes = 0;
    std::vector<skipped_path> skipped;
    std::uint64_t skipped_more = 0; // beyond those that are named
};

struct delete_result {
    std::uint64_t deleted = 0;
    std::uint64_t missing = 0;
    std::vector<skipped_path> failed;
};

struct workshop; // see workshop.hpp

class service final : public core::mark_board {
public:
    service(boost::asio::any_io_executor executor, sandbox::manager& manager,
            sandbox::account& account, const std::filesystem::path& state_dir);
    ~service() override; // waits for what is under way on other threads to notice stop()
    service(const service&) = delete;
    service& operator=(const service&) = delete;

    // Removes what a killed daemon has left on this machine, and the manifests of sandboxes that
    // are no more. Before anything else, with the records that were loaded.
    void sweep(const std::vector<core::sandbox_record>& records);
    // Nothing new begins, and what is under way fails soon.
    void stop();

    boost::asio::awaitable<push_result> push(push_request request, listeners who);
    boost::asio::awaitable<fetch_result> fetch(fetch_request request, listeners who);
    // `paths` as workspace_path() gives them, none of them /workspace.
    boost::asio::awaitable<delete_result> remove(core::sandbox_key key,
                                                 std::vector<std::string> paths);

    // What was pushed: where something is not there any more, or nobody can tell, the next push
    // looks at all.
    std::vector<std::string> marks(const std::string& sandbox_id) override;
    void on_marks(const std::string& sandbox_id, const std::vector<std::string>& paths,
                  const std::vector<std::optional<std::string>>& contents) override;
    void on_unseen(const std::string& sandbox_id) override;

private:
    std::shared_ptr<workshop> shop_;
};

} // namespace sandboxd::sync
