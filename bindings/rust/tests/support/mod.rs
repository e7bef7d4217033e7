// SPDX-License-Identifier: Apache-2.0
//! A cache_server for one test, in a folder and on a port of its own, found by the path of its socket: tests of one
//! program run in several threads, which share the environment.
use libcache::{Cache, Client, ConnectOptions, OpenOptions, Session};
use std::env;
use std::fs;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60); // an overloaded machine is no failure
const LOOK_EVERY: Duration = Duration::from_millis(2);

pub struct Server {
    process: Child,
    folder: PathBuf,
    port: u32,
}

impl Server {
    pub fn start() -> Server {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed); // a number nobody else has; orders nothing
        let folder = env::temp_dir().join(format!("lcr-{}-{number}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        loop {
            let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
            let program = PathBuf::from(env::var("LIBCACHE_BUILD").expect("LIBCACHE_BUILD names the build folder"));
            let process = Command::new(program.join("bin/cache_server"))
                .args(["--foreground", "--port", &port.to_string()])
                .env("LIBCACHE_DIR", &folder)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            let mut server = Server { process, folder: folder.clone(), port: port.into() };
            if server.answers() {
                return server;
            }
            std::mem::forget(server); // somebody else took the port: another one
        }
    }

    /// False if it has ended before.
    fn answers(&mut self) -> bool {
        let deadline = Instant::now() + PATIENCE;
        while self.try_connect().is_err() {
            if self.process.try_wait().unwrap().is_some() {
                return false;
            }
            assert!(Instant::now() < deadline, "the server does not answer");
            thread::sleep(LOOK_EVERY);
        }
        true
    }

    fn try_connect(&self) -> libcache::Result<Client> {
        let path = self.folder.join(format!("cache_server.{}", self.port));
        let socket_path = Some(path.to_str().unwrap().to_string());
        Client::connect_with(&ConnectOptions { port: self.port, socket_path, ..Default::default() })
    }

    pub fn client(&self) -> Client {
        self.try_connect().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let stopped = self.try_connect().and_then(|client| client.stop_server());
        if stopped.is_err() {
            let _ = self.process.kill();
        }
        let _ = self.process.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A server with a session. The field order ends the server last.
pub struct Place {
    pub session: Session,
    pub client: Client,
    _server: Server,
}

impl Place {
    pub fn new() -> Place {
        let server = Server::start();
        let client = server.client();
        Place { session: client.create_session().unwrap(), client, _server: server }
    }

    pub fn cache(&self) -> Cache {
        self.session.open(1, &OpenOptions { limit_bytes: 16 << 20, ..Default::default() }).unwrap()
    }
}
