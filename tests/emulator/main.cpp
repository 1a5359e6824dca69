// deep-sands-emulator: the deep_sands cloud on one machine, for tests.
//
// Reads its options, forks the launcher while the process is still simple, listens, prints
// `listening URL` (and `control URL`) and serves until SIGTERM or SIGINT. Whatever ends it, even
// SIGKILL, ends all its sandboxes.
#include "api/serve.hpp"
#include "cell/launcher.hpp"
#include "cloud/platform.hpp"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/program_options.hpp>

#include <sys/resource.h>
#include <sys/wait.h>

#include <csignal>
#include <fstream>
#include <iostream>

namespace asio = boost::asio;
namespace fs = std::filesystem;
namespace options = boost::program_options;
using asio::ip::tcp;
using namespace emulator;

namespace {

constexpr const char* control_help = R"(
Control (no authorisation; also on the port that `control` names, which stays plain HTTP and is never disturbed):
  GET  /_control/stats                    requests by "METHOD /route/{id}", by sandbox and by status, total, connections_accepted,
                                          connections_open, commands_started, sandboxes_created, boots, live_cells, live_processes
  POST /_control/reset-stats              forgets counters, requests and commands
  GET  /_control/config                   all settings
  POST /_control/config {NAME: VALUE}     changes some; all or nothing
  POST /_control/fault                    {"match": {"method", "route", "sandbox_id", "body"}, "skip": 0, "times": 1, "action": {...}}
                                          members of match are optional; body: a text in its first 64 KiB; times 0 = without end; one fault
                                          a request, oldest first
  GET  /_control/faults, DELETE /_control/faults
  GET  /_control/requests?last=N          n, connection, method, target, route, sandbox_id, headers, authorized, body_prefix, body_bytes,
                                          status, outcome (open, done, client_gone, fault), at, ended
  GET  /_control/commands?sandbox_id=ID   n, sandbox_id, argv, timeout_s, pid, returncode, ended, stdout_bytes, stderr_bytes, at, ended_at
  GET  /_control/sandboxes                objects of the API plus account, active, boots, calls_in_flight, timeout_seconds, idle_s,
                                          workspace (host directory), processes [{pid, ppid, pgid, command, cmdline}]
  POST /_control/sandboxes/{id}/stop      behind the client's back, at once; also /delete and /fail
  POST /_control/drop-connections         {"how": "fin"|"rst", "idle_only": false}

Fault actions (combine where it makes sense):
  latency_ms, latency_after_ms            before acting; between acting and answering
  drop_before, stall_before               closed, or never answered, without acting
  status, body, headers                   answered without acting; a body beginning with < is text/html
  act_then_drop: true|"started"|"done"    acted on (a command has started, or has ended), then closed without a byte
  act_then_status: N | {status, body, headers}
  cut_after_bytes, cut_after_lines        closed after so much of the body; the terminal line counts
  how: "fin"|"rst"                        of every closing above
  stall_after_bytes, stall_ms             silence after so much of the body, for ever or so long
  omit_terminal, omit_end                 an exec stream without its terminal line; with it, but without the end of the HTTP body
  terminal, inject                        text instead of the terminal line; text before everything else
  piece_bytes, piece_delay_ms             written to the socket in small pieces
)";

struct arguments {
    std::string listen = "127.0.0.1:0", certificate, key, api_key = "test-key", ready_file, data;
    config settings;
    bool own_data = false;
};

std::optional<arguments> read_arguments(int argc, char** argv) {
    arguments out;
    std::vector<std::string> settings;
    options::options_description known("Options");
    known.add_options()("help", "this text")(
        "listen", options::value(&out.listen)->default_value(out.listen), "address:port")(
        "tls-cert", options::value(&out.certificate),
        "PEM file of the certificate chain; serves HTTPS")("tls-key", options::value(&out.key),
                                                           "PEM file of its key")(
        "api-key", options::value(&out.api_key)->default_value(out.api_key), "the valid key")(
        "ready-file", options::value(&out.ready_file), "gets the lines printed when ready")(
        "data-dir", options::value(&out.data),
        "where the workspaces are kept; default: a temporary directory")(
        "set", options::value(&settings)->composing(), "NAME=VALUE of a setting below; repeatable");
    options::variables_map given;
    options::store(options::parse_command_line(argc, argv, known), given);
    options::notify(given);
    if (given.count("help")) {
        std::cout << "deep-sands-emulator: the deep_sands cloud on one machine, for tests.\n"
                  << known << control_help
                  << "\nSettings (? = unknown of the real platform, both answers can be had):\n"
                  << describe_config();
        return std::nullopt;
    }
    for (const auto& setting : settings) {
        const auto equals = setting.find('=');
        if (equals == setting.npos) throw std::invalid_argument("--set needs NAME=VALUE");
        merge_text(out.settings, setting.substr(0, equals), setting.substr(equals + 1));
    }
    if (out.certificate.empty() != out.key.empty())
        throw std::invalid_argument("--tls-cert and --tls-key go together");
    if (out.data.empty()) {
        std::string pattern = fs::temp_directory_path() / "deep-sands-XXXXXX";
        if (!::mkdtemp(pattern.data()))
            throw std::runtime_error("cannot make a temporary directory");
        out.data = pattern;
        out.own_data = true;
    }
    fs::create_directories(out.data);
    out.data = fs::canonical(out.data);
    return out;
}

tcp::endpoint read_endpoint(const std::string& text) {
    const auto colon = text.rfind(':');
    if (colon == text.npos) throw std::invalid_argument("--listen needs ADDRESS:PORT");
    return {asio::ip::make_address(text.substr(0, colon)),
            static_cast<unsigned short>(std::stoul(text.substr(colon + 1)))};
}

class server {
public:
    server(asio::io_context& io, api::world& all, asio::ssl::context* tls)
        : io_(io), all_(all), tls_(tls) {}

    task<void> accept(tcp::acceptor& at, bool control_only) {
        for (;;) {
            boost::system::error_code ec;
            tcp::socket socket(io_);
            co_await at.async_accept(socket, asio::redirect_error(asio::use_awaitable, ec));
            if (ec == asio::error::operation_aborted) co_return;
            if (ec) { // out of descriptors: let some go
                co_await sleep_ms(io_.get_executor(), 20);
                continue;
            }
            boost::system::error_code ignored;
            socket.set_option(tcp::no_delay(true), ignored);
            if (!control_only && !admit(socket)) continue;
            auto bytes = tls_ && !control_only ? http::make_tls(std::move(socket), *tls_)
                                               : http::make_tcp(std::move(socket));
            auto made =
                std::make_shared<http::connection>(io_.get_executor(), std::move(bytes), ++number_);
            const auto delay = control_only ? 0 : all_.settings.connect_latency_ms;
            asio::co_spawn(
                io_, [made, delay]() -> task<void> { co_await made->read_all(delay); },
                asio::detached);
            asio::co_spawn(io_, serve(made, control_only), [](std::exception_ptr error) {
                try {
                    if (error) std::rethrow_exception(error);
                } catch (const std::exception& what) {
                    std::cerr << "connection: " << what.what() << std::endl;
                }
            });
        }
    }

private:
    // accept_mode: what becomes of a new connection before a byte is exchanged.
    bool admit(tcp::socket& socket) {
        ++all_.records.connections_accepted;
        if (all_.settings.accept_mode == "normal") return true;
        boost::system::error_code ignored;
        if (all_.settings.accept_mode == "refuse") {
            socket.set_option(asio::socket_base::linger(true, 0), ignored);
            socket.close(ignored);
        } else
            ignored_.push_back(std::move(socket));
        return false;
    }

    task<void> serve(std::shared_ptr<http::connection> connection, bool control_only) {
        if (!control_only) {
            all_.connections.insert(connection.get());
            ++all_.records.connections_open;
        }
        std::exception_ptr failure;
        try {
            co_await api::serve_connection(all_, connection, control_only);
        } catch (...) {
            failure = std::current_exception();
        }
        connection->abort(false);
        if (!control_only) {
            all_.connections.erase(connection.get());
            --all_.records.connections_open;
        }
        if (failure) std::rethrow_exception(failure);
    }

    asio::io_context& io_;
    api::world& all_;
    asio::ssl::context* tls_;
    std::uint64_t number_ = 0;
    std::vector<tcp::socket> ignored_; // black holes
};

void raise_descriptor_limit() {
    rlimit limit{};
    if (::getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        ::setrlimit(RLIMIT_NOFILE, &limit);
    }
}

task<void> end_on_signal(asio::io_context& io, cloud::platform& platform) {
    asio::signal_set signals(io, SIGINT, SIGTERM);
    co_await signals.async_wait(asio::use_awaitable);
    co_await platform.close();
    io.stop();
}

int run(const arguments& given, unique_fd launcher_socket) {
    ::signal(SIGPIPE, SIG_IGN);
    raise_descriptor_limit();
    asio::io_context io(1);
    api::world all;
    all.executor = io.get_executor();
    all.settings = given.settings;
    all.accounts[given.api_key] = 0;
    all.read_accounts();
    cell::launcher launcher(io.get_executor(), std::move(launcher_socket));
    cloud::platform platform(io.get_executor(), all.settings, all.records, launcher, given.data);
    all.platform = &platform;

    std::optional<asio::ssl::context> tls;
    if (!given.certificate.empty()) {
        tls.emplace(asio::ssl::context::tls_server);
        tls->use_certificate_chain_file(given.certificate);
        tls->use_private_key_file(given.key, asio::ssl::context::pem);
    }
    tcp::acceptor api_port(io, read_endpoint(given.listen));
    tcp::acceptor control_port(io, tcp::endpoint(asio::ip::address_v4::loopback(), 0));
    server front(io, all, tls ? &*tls : nullptr);
    asio::co_spawn(io, front.accept(api_port, false), asio::detached);
    asio::co_spawn(io, front.accept(control_port, true), asio::detached);
    bool launcher_lost = false;
    asio::co_spawn(io, launcher.run(), [&](std::exception_ptr) {
        launcher_lost = true;
        io.stop();
    });
    asio::co_spawn(io, end_on_signal(io, platform), asio::detached);

    std::ostringstream ready;
    ready << "listening " << (tls ? "https" : "http") << "://" << api_port.local_endpoint() << "\n"
          << "control http://" << control_port.local_endpoint() << "\n";
    std::cout << ready.str() << std::flush;
    if (!given.ready_file.empty()) {
        std::ofstream(given.ready_file + ".new") << ready.str();
        fs::rename(given.ready_file + ".new", given.ready_file);
    }
    io.run();
    if (launcher_lost) std::cerr << "the launcher has died, and all sandboxes with it" << std::endl;
    return launcher_lost ? 1 : 0;
}

} // namespace

int main(int argc, char** argv) {
    try {
        const auto given = read_arguments(argc, argv);
        if (!given) return 0;
        auto launcher_socket = cell::fork_launcher(argc, argv);
        const int code = run(*given, std::move(launcher_socket));
        ::wait(nullptr); // for the launcher, which has seen its socket end
        for (const auto& entry : fs::directory_iterator(given->data))
            if (entry.path().filename().string().starts_with("sandbox-"))
                cloud::remove_tree(entry.path());
        if (given->own_data) cloud::remove_tree(given->data);
        return code;
    } catch (const std::exception& error) {
        std::cerr << "deep-sands-emulator: " << error.what() << std::endl;
        return 2;
    }
}
