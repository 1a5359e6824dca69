#include "rpc/methods.hpp"

#include "rpc/connection.hpp"

namespace sandboxd::rpc {

std::function<bool()> listening(const call& from) {
    return [client = std::weak_ptr(from.from)] {
        const std::shared_ptr<connection> there = client.lock();
        return there && !there->closed();
    };
}

const std::map<std::string, method, std::less<>>& methods() {
    static const std::map<std::string, method, std::less<>> table{
        {"hello", bind(hello)},
        {"daemon.ping", bind(daemon_ping)},
        {"daemon.status", bind(daemon_status)},
        {"daemon.health", bind(daemon_health)},
        {"rpc.discover", bind(rpc_discover)},
        {"account.set", bind(account_set)},
        {"plan.list", bind(plan_list)},
        {"sandbox.ensure", bind(sandbox_ensure)},
        {"sandbox.release", bind(sandbox_release)},
        {"sandbox.list", bind(sandbox_list)},
        {"sandbox.get", bind(sandbox_get)},
        {"sandbox.start", bind(sandbox_start)},
        {"sandbox.stop", bind(sandbox_stop)},
        {"sandbox.terminate", bind(sandbox_terminate)},
        {"sandbox.forget", bind(sandbox_forget)},
        {"orphan.adopt", bind(orphan_adopt)},
        {"orphan.inspect", bind(orphan_inspect)},
        {"orphan.terminate", bind(orphan_terminate)},
        {"exec.start", bind(exec_start)},
        {"exec.attach", bind(exec_attach)},
        {"exec.ack", bind(exec_ack)},
        {"exec.stdin", bind(exec_stdin)},
        {"exec.cancel", bind(exec_cancel)},
        {"exec.list", bind(exec_list)},
        {"fs.push", bind(fs_push)},
        {"fs.put", bind(fs_put)},
        {"fs.get", bind(fs_get)},
        {"fs.pull", bind(fs_pull)},
        {"fs.delete", bind(fs_delete)},
    };
    return table;
}

} // namespace sandboxd::rpc
