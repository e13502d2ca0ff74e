# What redis-py asks a Tidegate at the port of the first argument.
import sys, redis
port = int(sys.argv[1])
for protocol in (2, 3):
    r = redis.Redis(port=port, protocol=protocol, client_name="me")
    assert r.ping()
    key = "user:%d" % protocol
    assert r.execute_command("CL.THROTTLE", key, 15, 30, 60) == [0, 16, 15, -1, 2]
    assert r.execute_command("THROTTLE", "t" + key, 10, 10, 60)[:3] == [1, 10, 9]
    limited, limit, available, retry, full = r.execute_command("GCRA", "g" + key, 4, 1, 60)
    assert (limited, limit, available, float(retry)) == (0, 5, 4, -1.0)
    assert 59 < float(full) <= 60
    reply = r.execute_command("TG.CHECK", "api", "KEY", key)
    if protocol == 2:
        reply = dict(zip(reply[::2], reply[1::2]))
    assert reply[b"remaining"] == 2 and reply[b"allowed"], reply
    pipe = r.pipeline(transaction=False)
    for _ in range(1000):
        pipe.execute_command("CL.THROTTLE", "p" + key, 999, 1, 3600)
    replies = pipe.execute()
    assert [reply[2] for reply in replies] == list(range(999, -1, -1))
    try:
        r.execute_command("TG.CHECK", "nope", "KEY", "a")
        raise SystemExit("no error")
    except redis.ResponseError as error:
        assert "NOPOLICY" in str(error) or "no policy" in str(error), error
pool = redis.ConnectionPool(port=port, max_connections=5)
for n in range(20):
    assert redis.Redis(connection_pool=pool).execute_command("TG.POLICIES") == [b"api"]
print("done")
