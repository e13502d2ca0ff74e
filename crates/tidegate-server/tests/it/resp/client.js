// What ioredis asks a Tidegate at the port of the first argument.
const assert = require("assert");
const Redis = require("ioredis");
(async () => {
  const redis = new Redis({ port: Number(process.argv[2]), connectionName: "me" });
  assert.strictEqual(await redis.ping(), "PONG");
  assert.deepStrictEqual(await redis.call("CL.THROTTLE", "user", 15, 30, 60), [0, 16, 15, -1, 2]);
  const flat = await redis.call("TG.CHECK", "api", "KEY", "a");
  assert.strictEqual(flat[flat.indexOf("remaining") + 1], 2);
  const pipeline = redis.pipeline();
  for (let i = 0; i < 1000; i++) pipeline.call("CL.THROTTLE", "p", 999, 1, 3600);
  const replies = await pipeline.exec();
  replies.forEach(([error, reply], i) => {
    assert.strictEqual(error, null);
    assert.strictEqual(reply[2], 999 - i);
  });
  await assert.rejects(redis.call("TG.CHECK", "nope", "KEY", "a"), /NOPOLICY/);
  await redis.quit();
  console.log("done");
})().catch((error) => { console.error(error); process.exit(1); });
