// Where the person is, kept in the address: #/as/U1, #/as/U1/home, #/as/U1/C1, #/as/U1/C1/thread/TS, …/msg/TS (point at a message).

/** Read the address. */
export function readRoute() {
  const parts = location.hash.replace(/^#\/?/, "").split("/").map(decodeURIComponent);
  const route = { as: null, channel: null, thread: null, message: null, home: false };
  for (let i = 0; i < parts.length; i += 1) {
    if (parts[i] === "as") route.as = parts[++i] || null;
    else if (parts[i] === "thread") route.thread = parts[++i] || null;
    else if (parts[i] === "msg") route.message = parts[++i] || null;
    else if (parts[i] === "home") route.home = true;
    else if (parts[i]) route.channel = parts[i];
  }
  return route;
}

/** The address of a place. */
export function hrefOf({ as, channel = null, thread = null, message = null, home = false }) {
  const parts = ["#", "as", as];
  if (home) parts.push("home");
  else if (channel) {
    parts.push(channel);
    if (thread) parts.push("thread", thread);
    if (message) parts.push("msg", message);
  }
  return parts.join("/");
}

/** A permalink of this workspace (/archives/C1/p1700000000000100?thread_ts=…, or where the server leads it: /?channel=…&ts=…) as {channel, thread, message}, or null. */
export function readPermalink(url) {
  const { searchParams } = url;
  if (url.pathname === "/" && searchParams.has("channel")) return { channel: searchParams.get("channel"), message: searchParams.get("ts"), thread: searchParams.get("thread_ts") };
  const match = /^\/archives\/([A-Z0-9]+)(?:\/p(\d{7,}))?\/?$/.exec(url.pathname);
  if (!match) return null;
  const message = match[2] ? `${match[2].slice(0, -6)}.${match[2].slice(-6)}` : null;
  return { channel: match[1], message, thread: url.searchParams.get("thread_ts") };
}
