# Starts a server, waits until it listens, and says where. It ends with the step.
serve() {
    rm -f log && touch log
    setpriv --pdeathsig KILL tidegate serve --drain 0 "$@" 2>log &
    until grep -q 'listening on' log; do
        kill -0 $! 2>/dev/null || { cat log && return 1; }
        sleep 0.02
    done
    grep -o 'listening on [^" ]*' log | head -n 1
}
