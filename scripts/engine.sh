#!/bin/sh
# engine.sh start|stop|answers: have a Docker engine that answers.
# start: uses the one there is; else installs Debian's docker.io and starts it. It asks nothing and says what it does. Where
#        one that it started has ended by itself, it says so and keeps what that one wrote (dockerd.log.ended).
# stop:  stops the engine that `start` started, and no other.
# answers: says by its exit code whether there is one.
set -eu
here=$(dirname "$0")
. "$here/lib.sh"

state=$(cd "$here/.." && pwd)/.shoal
ours=$state/dockerd.pid
log=$state/dockerd.log
sentence="a Docker engine is needed and none answers: install Docker and start it, or run this as root on Debian"

answers() { # any client will do to ask: the one that builds is chosen later
    for client in ${DOCKER:-} $(command -v -p docker || true) $(command -v docker || true); do
        "$client" info >/dev/null 2>&1 && return 0
    done
    return 1
}

# An engine that was killed leaves its pid file, and dockerd refuses to start if any process has that number now.
forget_dead() { # PROGRAM PIDFILE
    [ -f "$2" ] || return 0
    case $(readlink "/proc/$(cat "$2")/exe") in # a zombie has a number still, but no program
    */"$1") ;;
    *) rm -f "$2" ;;
    esac
}

# An engine of ours that ended though nobody stopped it: its last words are all there is to say why.
remember_ended() {
    [ -f "$ours" ] && ! kill -0 "$(cat "$ours")" 2>/dev/null || return 0
    rm -f "$ours"
    [ -s "$log" ] || return 0
    mv "$log" "$log.ended"
    say "the Docker engine that was started here has ended by itself; it said last (all of it: .shoal/dockerd.log.ended):"
    tail -n 20 "$log.ended" >&2
}

start() {
    answers && return 0
    remember_ended
    [ "$(id -u)" = 0 ] || die "$sentence"
    need "$sentence" docker.io
    mkdir -p "$state"
    if [ -d /run/systemd/system ]; then
        say "starting the Docker engine (systemctl start docker)"
        systemctl start docker
    else
        say "starting the Docker engine (dockerd, log: .shoal/dockerd.log; stop it with make engine-stop)"
        forget_dead dockerd /var/run/docker.pid
        forget_dead containerd /var/run/docker/containerd/containerd.pid
        setsid dockerd >"$log" 2>&1 </dev/null &
        echo $! >"$ours"
    fi
    waited=0
    until answers; do
        if [ -f "$ours" ] && ! kill -0 "$(cat "$ours")" 2>/dev/null; then
            rm -f "$ours"
            die "dockerd ended at once: $(tail -n 1 "$log")"
        fi
        [ "$waited" -lt 60 ] || die "the Docker engine does not answer after 60 s: see $log"
        waited=$((waited + 1))
        sleep 1
    done
}

stop() {
    [ -f "$ours" ] || return 0
    pid=$(cat "$ours")
    rm -f "$ours"
    kill "$pid" 2>/dev/null || return 0
    while kill -0 "$pid" 2>/dev/null; do sleep 0.2; done
}

case ${1:-} in
start) start ;;
stop) stop ;;
answers) answers ;;
*) die "usage: engine.sh start|stop|answers" ;;
esac
