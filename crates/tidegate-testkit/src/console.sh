# Waits until the log of the server has this, and prints it.
logged() {
    for _ in {1..1200}; do
        grep -o "$1" log && return
        kill -0 $! 2>/dev/null || break
        sleep 0.05
    done
    cat log && return 1
}
# Starts a server, waits until it listens, and says where. It ends with the step.
serve() {
    rm -f log && touch log
    setpriv --pdeathsig KILL tidegate serve --drain 0 "$@" 2>log &
    logged 'listening on [^" ]*' | head -n 1
}
