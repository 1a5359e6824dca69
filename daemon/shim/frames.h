// What the shim accepts on its command line and what it prints: the contract between the shim,
// which runs inside a sandbox, and the daemon, which must treat every byte of it as hostile input.
//
// Owns nothing. The constants at the end are shared by both sides; the rest is the specification
// that the daemon's parser is written from. A change that an old reader would misunderstand raises
// SHIM_FRAMES_VERSION; new frame names and new fields do not.
//
// == Placement ==
//
//   Put the bytes at HOME/shim-HASH.RANDOM (HOME is SHIM_HOME below), then execute
//     ["/bin/sh", "-c", "chmod 755 \"$1\" && mv -f \"$1\" \"$2\" && exec \"$2\" probe", "sh",
//      HOME/shim-HASH.RANDOM, HOME/shim-HASH]
//
//   `probe` also makes the claims directory (mode 1777, so that several uids can share a sandbox),
//   with a few claims in reserve, so that commands that make room can run on a full disk. `run`
//   makes the directory again where a command has removed it. Another version's runners that are
//   still alive can be followed and killed, as long as WIRE_VERSION (shim.h) is the same.
//
// == Command line ==
//
// shim run ID [options] -- ARGV...
//     Claims ID and runs ARGV, or attaches where ID is claimed already.
//     --digest HEX         of the request's arguments, at most 64 characters; another digest than
//                          the claim's is refused (error id_in_use)
//     --timeout-ms N       deadline from the start of the command, monotonic clock; 0 = none
//     --kill-grace-ms N    at the deadline SIGTERM first, SIGKILL N ms later; 0 = SIGKILL at once
//     --cwd PATH           where it cannot be entered: /workspace, else /, with a `note`
//     --env NAME=VALUE     on top of the environment of the call; NAME alone removes it
//     --merge              stderr goes into stdout
//     --stdin KIND         none (default): /dev/null; empty: EOF at once; open: chunks are to come
//                          with `shim stdin`; data:BASE64: these bytes, then EOF; file:PATH: the
//                          content of that regular file, then EOF
//     --unlink-stdin       remove file:PATH once it is open and the command started, or where the
//                          command has ended before and is not started
//     --cleanup PATH       remove that file when the command has ended, or had before (up to 4
//                          times)
//     --raw                ARGV is taken as it is; without it each element is percent-decoded
//     --spool-cap BYTES    most output kept; default 268435456; in blocks of 64 KiB, at least one
//     --spool-grace-ms N   a full spool blocks the command; one that has been full for so long
//                          without a new `follow` or `ack` gives up its oldest bytes instead;
//                          default 3600000. Whoever holds back because its reader is slow repeats
//                          its `ack` before that; whoever only waits for the end says --unattended.
//     --linger-s N         how long the output of an ended command waits for its `ack --done`;
//                          the claim, with the outcome, stays after that; default 86400
//     --mark PATH          the hello tells whether this is there before the command starts, and
//                          what a small file contains (up to 4 times)
//     --ack ID             as `shim ack ID 0 --done` (up to 1024 times), each answered by `acked`
//     and the options of follow.
// shim follow ID FROM [options]
//     Never starts anything; sends what comes at and after position FROM.
//     --max-seconds N      leave with `more` then; 0 = never (default). Where nobody reads, leave
//                          1 s later (30 s where a little is read now and then) without another
//                          word, in the middle of a frame if need be: what was not received as a
//                          whole comes again with the next `follow`
//     --max-bytes N        leave with `more` after printing about so much; 0 = never (default)
//     --keepalive-ms N     an `alive` frame after so long without a frame; 0 = none; default 15000
//     --unattended         this call is no reader that a full spool should wait for: it may drop as
//                          if nobody had called, and `gap` says so
//     --digest HEX, --ack ID   as above
// shim kill ID [--signal S --grace-ms N] [--confirm-ms N] [--digest HEX]
//     SIGKILL to the whole tree; where S is given (a number or INT, TERM, HUP, QUIT), S first and
//     SIGKILL N ms (default 2000) later to what is left. An ID that nobody has claimed is claimed
//     as cancelled, so that no start can follow. Answers within confirm-ms (default 5000) more.
// shim stdin ID OFFSET [--data BASE64 | --file PATH [--unlink]] [--eof] [--wait-ms N]
//     One chunk of the stdin of `run --stdin open`; OFFSET counts its bytes from 0. The same chunk
//     may be sent again, nothing is fed twice. Without data and --eof it only asks. Returns when
//     the command's pipe has all of it, or after wait-ms (default 20000); an accepted chunk need
//     not be sent again then, but the next one is refused (`busy`) until this one is written.
//     --unlink: PATH goes, unless the state is `busy` or `unanswered`, as then it is to come again.
// shim ack ID POS [--done]
//     Output before POS is safe at the daemon and may be forgotten. --done: so is the end of the
//     command: forget the claim too (nothing happens to it while the command runs). After that the
//     id is unknown, and a `run` of it would run: so --done is for ids of which no `run` that was
//     sent can still arrive.
// shim ps
//     What there is, by sockets and by claims.
// shim probe
//     Whether the shim can work here.
//
// ID: [A-Za-z0-9][A-Za-z0-9._-]{0,127}. The values of --cwd, --env, --mark, --cleanup, --file and
// file:, and ARGV unless --raw, are percent-decoded: "%XX" (two hexadecimal digits) becomes that
// byte; a "%" without two digits, and "%00", are refused. So a caller must encode "%" and the bytes
// that are not valid UTF-8 and may leave everything else, blanks and newlines too, as it is:
// elements get no longer than they must (the kernel refuses one of 131072 bytes).
//
// Exit status: 0 when the last frame below was printed or --max-seconds were over, 1 when stdout
// has gone, 2 after `error`. The outcome is in the frames, never in the exit status. Nothing is
// printed on stderr.
//
// == Frames ==
//
// Stdout is a sequence of frames. A frame is a line of printable ASCII ended by LF, at most
// SHIM_FRAME_LINE_MAX bytes with its LF: a name, then fields "key=value", each after one blank.
// Readers ignore names and fields they do not know. Numbers are decimal, without a sign, below
// 2^63. "-" means none. Text is percent-encoded: bytes of [A-Za-z0-9._~:/,+-] stand for themselves,
// except that the text "-" is "%2D". Only a mark may be empty.
//
// Positions: `pos` counts decoded bytes of both streams together in the order in which the shim
// took them; it is the one number by which a stream is resumed (FROM) and acknowledged. `out` and
// `err` are offsets within one stream; out + err = pos. The order is exact within a stream and the
// same in every transmission; between streams it is as near as two pipes allow.
//
// The only frames with a payload:
//     o POS OFF r N LF payload LF     N bytes of stdout at POS, at offset OFF of stdout,
//     e POS OFF r N LF payload LF     or of stderr; 1 <= N <= SHIM_FRAME_DATA_MAX.
//     o POS OFF b N LF payload LF     r: the bytes themselves, all of 0x20..0x7e, LF or TAB, so
//     e POS OFF b N LF payload LF     that they survive a text channel. b: standard base64 with
//     o POS OFF z N M LF payload LF   padding, 4*ceil(N/3) characters, no line breaks. z: base64 of
//     e POS OFF z N M LF payload LF   M characters, M < N, of an LZ4 block that unpacks to N bytes;
//                                     of what is worth it: 4 KiB and more that shrink by a quarter
//                                     or more.
// POS is always the position that follows from the frames before it (hello, data, gap).
//
// First frame of every call:
//     deepinfra-shim/1 VERB build=TEXT arch=x86_64|aarch64|other uid=N boot=TEXT
//         VERB: none where it is not known. boot changes whenever processes of before cannot be
//         alive any more: boot id, inode of the pid namespace, start time of its process 1.
//     run and follow add  id=TEXT state=S pos=POS out=N err=N [spool=N] [mark=TEXT|-]...
//         state: new       run only: this call holds the claim and starts the command
//                attached  a runner is alive and serves this call
//                dead      there is a claim without a runner; the next frames say what it tells
//                none      there is neither, or the call failed before it was known: see the next
//                          frame
//         [spool=N] with new and attached: most bytes of output that are kept, see --spool-cap.
//         pos: what the next data frame begins with (out and err are exact unless a gap follows).
//         mark: one for each --mark, in order: at most 64 bytes of the file, none of what is
//         there and cannot be read (a directory, a link that leads nowhere) or not be looked at;
//         - there is nothing.
//     A misused command line gets no id and state.
//
// In the middle of run and follow:
//     gap pos=POS n=N out=N err=N    the N bytes from POS are not kept any more; out and err are
//                                    the stream offsets after them
//     full pos=POS start=POS end=POS [blocked=yes]
//                                    half of the spool or more waits for an `ack`. POS was sent,
//                                    start to end is kept. blocked: that is all that there is room
//                                    for, and the command stands still until an ack comes. Said at
//                                    most once for each MiB sent, and once after each ack when
//                                    blocked.
//     alive pos=POS                  keepalive
//     note name=cwd errno=N cwd=TEXT --cwd could not be entered; the command runs in `cwd`
//     acked id=TEXT state=S          an --ack: gone (nothing is left of it), running (kept)
//
// Last frame of run and follow:
//     exit reason=R started=yes|no code=N|- signal=N|- pos=POS out=N err=N dropped=N background=N
//          elapsed_ms=N output=kept|gone errno=N|- at=TEXT|-
//         reason: exited     by itself: its code, or the signal that ended it
//                 timed_out  by the deadline; code or signal as it was
//                 cancelled  by kill; started=no where the kill came before the start
//                 failed     it could not be started: errno, at (execve, pipe, ...); started=no
//         pos, out, err: of the whole output. dropped: bytes given up for good. background: at
//         least so many processes of the command live on (0 = none). output=gone: the runner died
//         after the end; what had not been sent before is lost (a gap frame came before).
//     more why=seconds|bytes|superseded pos=POS
//         Not the end: `follow` from POS. Several calls may follow one id at once. superseded: an
//         `ack` went beyond what this one had been given, so another one is the daemon's; or there
//         were too many, and this one had asked for nothing for the longest.
//     lost claim=none|claimed|started|exited started=no|unknown|yes boot=same|other|- code=N|-
//          signal=N|-
//         There is no runner. claimed: it died before the command was started; nothing has run and
//         `run` may be sent again. started: the outcome is unknown. exited: the command has ended
//         with this code or signal, but its last output is lost. none: never claimed, or
//         acknowledged, or the claim was removed together with its runner.
//     error name=N errno=N|- at=TEXT started=no|unknown
//         started=no: this call has started nothing. errno is the first one met, `at` its step.
//         id_in_use         other digest
//         claim_failed      the claim file cannot be made (ENOSPC, EDQUOT, EROFS, EACCES, ...)
//         claim_unreadable  there is one that cannot be read
//         socket_failed     the id's socket cannot be made or reached
//         socket_foreign    it belongs to another user
//         busy              the runner lives and serves as many as it can: ask again
//         spawn_failed      no process or memory for the runner
//         runner_died       before it could claim
//         stdin_failed      file:PATH, or a chunk
//         bad_offset        FROM is beyond what there is
//         protocol          a runner that speaks another version, or nonsense
//         usage             `at` names the argument
//
// Last frame of the others, or an error frame:
//     killed confirmed=yes|no was=W left=N errno=N|-
//         was: running; ended (only background processes were left, if any); unclaimed (the id is
//         cancelled now); cancelled (before); lost (no runner: what was left of its session was
//         killed, but what had left the session cannot be found, so this is confirmed only if the
//         claim is of another boot). left: live processes seen last.
//     stdin state=S accepted=N written=N
//         state: open; eof (all is written and closed); closed (by the command: what comes is
//         thrown away); busy (refused: an earlier chunk is not written); early (refused: OFFSET is
//         beyond `accepted`); none (no such stdin); ended; lost (there is no runner); unanswered
//         (the runner has not said a word in time, and may take it yet: send it again)
//     acked id=TEXT state=gone|running
//     exec id=TEXT state=S pid=N|- age_ms=N descendants=N pos=POS start=POS followed=0|1 code=N|-
//          signal=N|- reason=R|-
//         ps, one for each id. state: running, draining (ended; its last output is being taken),
//         ended, background (ended; processes live on); of a claim without a runner: claimed,
//         started, exited, finished, failed, cancelled. start to pos is kept.
//     done n=N
//     probe ok=0|1 kernel=TEXT pidns=N NAME=0|ERRNO...
//         abstract (named sockets), peercred, passfd, orphan (a detached process survives its
//         parent and gets another), subreaper, proc (processes can be seen), claims (the directory
//         can be made and written to), spool (files for long output), memfd. ok needs all but
//         the last two.
#pragma once

#define SHIM_FRAMES_VERSION 1
#define SHIM_FRAME_LINE_MAX 2048
#define SHIM_FRAME_DATA_MAX 65536
#define SHIM_ID_MAX 128
#define SHIM_DIGEST_MAX 64
#define SHIM_HOME "/workspace/.deepinfra-sandboxd"
#define SHIM_CLAIMS SHIM_HOME "/claims"
