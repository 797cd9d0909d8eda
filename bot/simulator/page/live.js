// The page's connection: one snapshot, then frames; after any break a new snapshot. Frames that arrive while a
// snapshot is being read are applied after it, so nothing is lost in between and later always wins.

/** POST to the page API. Never throws: no connection is an answer too. */
export async function post(path, body) {
  try {
    const response = await fetch(path, { method: "POST", headers: { "content-type": "application/json", "x-atlas-page": "1" }, body: JSON.stringify(body) });
    const answer = await response.json();
    if (typeof answer.ok !== "boolean") return { ok: false, error: "bad_answer", text: `The workspace answered ${response.status}.` };
    return answer;
  } catch { return { ok: false, error: "offline", text: "The workspace cannot be reached. It will be tried again." }; }
}

export class Live {
  #socket = null; #generation = 0; #attempt = 0; #timer = null; #retryNow = null;

  /** `on`: {snapshot(s), frame(f), online(bool)}. */
  constructor(on) {
    this.on = on;
    addEventListener("online", () => this.#retryNow?.());
    document.addEventListener("visibilitychange", () => { if (!document.hidden) this.#retryNow?.(); });
  }

  /** Follow the workspace as this person (null: whoever the server proposes). */
  follow(person) {
    this.#generation += 1;
    this.#attempt = 0;
    this.#socket?.close();
    clearTimeout(this.#timer);
    void this.#open(person, this.#generation);
  }

  async #open(person, generation) {
    this.#retryNow = null;
    try {
      if (!person) person = (await this.#snapshot(null)).me;
      const socket = new WebSocket(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/page/live?as=${encodeURIComponent(person)}`);
      if (generation !== this.#generation) { socket.close(); return; }
      this.#socket = socket;
      let waiting = [];
      socket.addEventListener("message", (event) => {
        if (generation !== this.#generation) return;
        const frame = JSON.parse(event.data);
        if (waiting) waiting.push(frame); else this.on.frame(frame);
      });
      await new Promise((resolve, reject) => {
        socket.addEventListener("open", resolve, { once: true });
        socket.addEventListener("close", () => reject(new Error("closed")), { once: true });
      });
      const snapshot = await this.#snapshot(person);
      if (generation !== this.#generation) { socket.close(); return; }
      if (socket.readyState !== WebSocket.OPEN) throw new Error("closed");
      socket.addEventListener("close", () => this.#lost(person, generation), { once: true });
      this.on.snapshot(snapshot);
      for (const frame of waiting) this.on.frame(frame);
      waiting = null;
      this.#attempt = 0;
      this.on.online(true);
    } catch (error) { this.#lost(error.unknownPerson ? null : person, generation); }
  }

  async #snapshot(person) {
    const response = await fetch(`/page/state${person ? `?as=${encodeURIComponent(person)}` : ""}`, { headers: { accept: "application/json" } });
    if (!response.ok) throw Object.assign(new Error(`state ${response.status}`), { unknownPerson: response.status >= 400 && response.status < 500 });
    return response.json();
  }

  #lost(person, generation) {
    if (generation !== this.#generation) return;
    this.#socket?.close();
    this.on.online(false);
    const wait = Math.min(250 * 2 ** this.#attempt, 4000);
    this.#attempt += 1;
    clearTimeout(this.#timer);
    this.#retryNow = () => { clearTimeout(this.#timer); void this.#open(person, generation); };
    this.#timer = setTimeout(this.#retryNow, wait);
  }
}
