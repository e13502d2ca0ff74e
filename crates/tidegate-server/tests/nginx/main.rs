//! A real nginx with the files in `examples/nginx/`, real tidegates behind it, and a real
//! Redis where limits are shared.

mod client;
mod process;

mod nginx;
mod redis;
mod relay;
mod tidegate;

mod answers;
mod connections;
mod fallback;
mod fleet;
mod keys;
mod readme;
mod seeds;
