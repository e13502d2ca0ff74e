//! A real nginx with the files in `examples/nginx/`, real tidegates behind it, and a real
//! Redis where limits are shared.

mod proxy;
mod tidegate;

mod connections;
mod fallback;
mod fleet;
mod readme;
mod requests;
