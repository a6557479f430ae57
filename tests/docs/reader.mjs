// Reads the latest checkpoint of an agent as Checkpoint.to_bytes() would write it, from the stored bytes
// alone. Written by the rules of docs/reference/storage-format.md.
//
// It is asked line by line, and answers line by line:
//
//   ["file", DIRECTORY, "checkpoint", AGENT]            [0, the checkpoint in base64]
//   ["redis", "redis://host:port/0", "turns", AGENT]    [0, its active run, open runs and runs in base64]
//   ["sqlite", DATABASE, "due_times", ""]               [0, due times for the watchdog, in base64]
//
// 1 and a message: something is damaged; 2: a newer format; 3: the agent has no checkpoint. For SQLite it
// needs the sqlite3 command.

import { execFileSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import { existsSync, readFileSync, readdirSync } from 'node:fs'
import { connect } from 'node:net'
import { join } from 'node:path'
import { createInterface } from 'node:readline'

const FORMAT = 1
const PREFIX = 'ckpt:'

class Damaged extends Error {}
class TooNew extends Error {}

// -- the record ---------------------------------------------------------------------------------------

function refuseNewer (version) {
  if (!/^[0-9]+$/.test(version) || Number(version) < 1) throw new Damaged(`format version ${version}`)
  if (Number(version) > FORMAT) throw new TooNew(`format ${version}, and this reader knows ${FORMAT}`)
}

/** Cut bytes at the first `count` spaces. */
function fields (bytes, count) {
  const found = []
  let start = 0
  for (let number = 0; number < count; number++) {
    const end = bytes.indexOf(0x20, start)
    if (end < 0) throw new Damaged('a record with too few fields')
    found.push(bytes.toString('utf8', start, end))
    start = end + 1
  }
  return [...found, bytes.subarray(start)]
}

function parsed (record) {
  refuseNewer(fields(record, 1)[0])
  const [, seq, base, , ranges, digest, header] = fields(record, 6)
  if (!/^[0-9]+$/.test(seq) || !/^[0-9]+$/.test(base)) throw new Damaged('seq or base is no number')
  return { base: Number(base), spans: spansOf(ranges, Number(base)), digest, header }
}

function spansOf (text, base) {
  if (text === '-') return []
  return text.split(',').map(range => {
    const found = /^(\+?)([0-9]+):([1-9][0-9]*)$/.exec(range)
    if (!found) throw new Damaged(`${range} is no range`)
    return { start: Number(found[2]) + (found[1] ? base : 0), count: Number(found[3]) }
  })
}

function offsetsOf (spans) {
  return spans.flatMap(({ start, count }) => Array.from({ length: count }, (_, i) => start + i))
}

// -- the checkpoint -----------------------------------------------------------------------------------

function object (bytes, what) {
  let value
  try { value = JSON.parse(bytes.toString('utf8')) } catch { throw new Damaged(`${what} is not JSON`) }
  if (value === null || typeof value !== 'object' || Array.isArray(value)) {
    throw new Damaged(`${what} is not an object`)
  }
  return value
}

function check ({ digest, header }, lines) {
  const sha256 = createHash('sha256')
  for (const line of lines) sha256.update(line).update('\n')
  if (sha256.update(header).digest('hex').slice(0, 24) !== digest) throw new Damaged('wrong digest')
  lines.forEach(line => object(line, 'a message'))
  const { messages, entry } = object(header, 'the header')
  const fits = entry ? messages <= lines.length && entry.kept <= messages : messages === lines.length
  if (!fits) throw new Damaged('the header does not belong to the messages')
}

/** The bytes of to_bytes. `lineAt` gives the line at an offset, or undefined. */
function written (agent, id, record, lineAt) {
  const isThere = ({ start, count }) => lineAt(start + count - 1) !== undefined
  const lines = record.spans.every(isThere) ? offsetsOf(record.spans).map(lineAt) : [undefined]
  if (lines.includes(undefined)) throw new Damaged(`checkpoint ${id} lacks messages`)
  check(record, lines)
  const start = `{"format":${FORMAT},"id":${JSON.stringify(id)},"agent_id":${JSON.stringify(agent)},"header":`
  const between = lines.flatMap((line, i) => i ? [Buffer.from(','), line] : [line])
  return Buffer.concat([
    Buffer.from(start), record.header, Buffer.from(',"messages":['), ...between, Buffer.from(']}')
  ])
}

const isOpen = run => !(['succeeded', 'failed', 'cancelled'].includes(run.status) && run.delivered)

function linesOf (bytes) {
  const lines = []
  let start = 0
  for (let end; (end = bytes.indexOf(0x0a, start)) >= 0; start = end + 1) {
    lines.push({ start, line: bytes.subarray(start, end) })
  }
  return { lines, rest: bytes.subarray(start), end: start }
}

// -- names --------------------------------------------------------------------------------------------

function base32 (bytes) {
  let bits = ''
  for (const byte of bytes) bits += byte.toString(2).padStart(8, '0')
  return bits.match(/.{5}/g).map(five => 'abcdefghijklmnopqrstuvwxyz234567'[parseInt(five, 2)]).join('')
}

const fileName = name => base32(createHash('sha256').update(name, 'utf8').digest().subarray(0, 20))
const hashTag = name => name.replaceAll('%', '%25').replaceAll('{', '%7B').replaceAll('}', '%7D')

// -- files --------------------------------------------------------------------------------------------

const CRCS = Array.from({ length: 256 }, (_, byte) => {
  for (let i = 0; i < 8; i++) byte = byte & 1 ? 0xedb88320 ^ (byte >>> 1) : byte >>> 1
  return byte >>> 0
})

function crc (bytes) {
  let value = 0xffffffff
  for (const byte of bytes) value = CRCS[(value ^ byte) & 0xff] ^ (value >>> 8)
  return ((value ^ 0xffffffff) >>> 0).toString(16).padStart(8, '0')
}

class Journal {
  log = new Map() // offset -> line
  live = new Map() // id -> record, or the error that it is, oldest first
  end = 0 // the offset after the last message
  sizes = new Map() // number of a file -> how much of it is whole

  take (number, bytes) {
    const { lines } = linesOf(bytes)
    let save = null
    let whole = 0
    for (const { start, line } of lines) {
      const isShort = save && save.has < save.wants
      if (line[0] === 0x7b || (isShort && line[0] !== 0x23)) {
        if (save) this.log.set(save.base + save.has++, line)
        if (save) this.end = save.base + save.has
      } else {
        save = this.entry(line)
      }
      if (!save || save.has >= save.wants) whole = start + line.length + 1
    }
    if (save && save.has < save.wants) this.live.delete(save.id) // cut off, and never acknowledged
    this.sizes.set(number, whole)
  }

  entry (line) {
    const text = line.subarray(10)
    const isRight = line[0] === 0x23 && line.toString('latin1', 1, 9) === crc(text)
    const kind = text.toString('latin1').split(' ', 1)[0]
    if (isRight && kind === 'prune') {
      text.toString('utf8').split(' ').slice(1).forEach(id => this.live.delete(decodeURIComponent(id)))
      return null
    }
    if (isRight && kind === 'save') {
      const [, wants, quoted, record] = fields(text, 3)
      const id = decodeURIComponent(quoted)
      const base = Number(fields(record, 3)[2])
      this.live.set(id, record)
      this.end = base
      return { id, base, wants: Number(wants), has: 0 }
    }
    const id = `(unreadable: ${text.toString('latin1').slice(0, 80)})`
    this.live.set(id, new Damaged('the record of the latest checkpoint is damaged'))
    return { id, base: this.end, wants: 0, has: 0 }
  }

  noticeLoss (tip) {
    const [sum, number, size, id, ...more] = tip.toString('latin1').trimEnd().split(' ')
    if (id === undefined || more.length || sum !== crc(Buffer.from(`${number} ${size} ${id}`))) return
    if ((this.sizes.get(Number(number)) ?? 0) >= Number(size)) return
    this.live.set(decodeURIComponent(id), new Damaged('the latest checkpoint was cut off'))
  }
}

function directoryOf (root, agent) {
  const name = fileName(agent)
  return join(root, 'agents', name.slice(0, 2), name)
}

function fromFiles (root, agent) {
  const directory = directoryOf(root, agent)
  if (!existsSync(join(directory, 'name'))) return null
  const about = object(readFileSync(join(directory, 'name')), 'the name file')
  refuseNewer(String(about.format))
  if (about.agent_id !== agent) throw new Damaged('the directory is another agent\'s')
  const journal = journalIn(directory)
  if (existsSync(join(directory, 'tip'))) journal.noticeLoss(readFileSync(join(directory, 'tip')))
  const [id, latest] = [...journal.live].at(-1) ?? []
  if (id === undefined) return null
  if (latest instanceof Error) throw latest
  return written(agent, id, parsed(latest), offset => journal.log.get(offset))
}

function journalIn (directory) {
  const journal = new Journal()
  const numbers = readdirSync(directory).filter(file => /^journal-[0-9]+$/.test(file))
    .map(file => [Number(file.slice(8)), file]).sort(([a], [b]) => a - b)
  for (const [number, file] of numbers) journal.take(number, readFileSync(join(directory, file)))
  return journal
}

const jsonIn = path => existsSync(path) ? object(readFileSync(path), path) : null

function turnsInFiles (root, agent) {
  const directory = directoryOf(root, agent)
  const runs = new Map()
  const table = join(directory, 'runs')
  for (const { line } of existsSync(table) ? linesOf(readFileSync(table)).lines : []) {
    const [sum, key, value] = fields(line, 2)
    if (sum !== crc(line.subarray(sum.length + 1))) throw new Damaged('a line of runs is damaged')
    runs.set(decodeURIComponent(key), object(value, 'a run'))
  }
  const pending = jsonIn(join(directory, 'pending-run'))
  if (pending && journalIn(directory).live.has(pending.checkpoint)) runs.set(pending.run, pending.record)
  const open = [...runs].filter(([, run]) => isOpen(run)).map(([name]) => name)
  return { active: jsonIn(join(directory, 'lease'))?.active ?? '', open, runs: [...runs] }
}

function dueTimesInFiles (root) {
  const schedule = join(root, 'watchdog')
  const names = existsSync(schedule) ? readdirSync(schedule).filter(file => file !== 'lock' && file[0] !== '.') : []
  return names.map(name => jsonIn(join(schedule, name))).map(found => [found.agent_id, found.due_at])
}

// -- SQLite -------------------------------------------------------------------------------------------

const textOf = hex => Buffer.from(hex, 'hex').toString()
const literal = text => `CAST(x'${Buffer.from(text).toString('hex')}' AS TEXT)`

/** The rows of some statements in one transaction; the first column says of which one. */
function query (path, statements) {
  const sql = `BEGIN; SELECT 'format', version FROM ckpt_format; ${statements}; ROLLBACK;`
  const options = { input: sql, maxBuffer: 2 ** 30 }
  const rows = execFileSync('sqlite3', ['-batch', '-list', '-noheader', path], options).toString()
    .trimEnd().split('\n').map(row => row.split('|'))
  refuseNewer(rows.find(([kind]) => kind === 'format')[1])
  return kind => rows.filter(row => row[0] === kind).map(row => row.slice(1))
}

function fromSqlite (path, agent) {
  const rows = query(path, `
    SELECT 'save', s.base, s.count, s.format || ' ' || (s.number & 4294967295) || ' ' || s.base || ' ',
        ifnull(hex(CAST(s.id AS BLOB)), ''), ifnull(hex(s.record), ''), hex(s.messages)
    FROM ckpt_agents AS a JOIN ckpt_saves AS s
    ON s.number BETWEEN a.key << 32 AND (a.key << 32) + 4294967295
    WHERE a.agent_id = ${literal(agent)} ORDER BY s.number`)
  const log = new Map()
  let latest = null
  for (const [base, count, stamp, id, record, messages] of rows('save')) {
    const text = Buffer.from(messages + '0a', 'hex')
    const lines = Number(count) ? linesOf(text).lines : []
    if (lines.length === Number(count)) lines.forEach(({ line }, i) => log.set(Number(base) + i, line))
    if (id) latest = [textOf(id), Buffer.concat([Buffer.from(stamp), Buffer.from(record, 'hex')])]
  }
  return latest && written(agent, latest[0], parsed(latest[1]), offset => log.get(offset))
}

function turnsInSqlite (path, agent) {
  const rows = query(path, `
    SELECT 'agent', hex(active) FROM ckpt_agents WHERE agent_id = ${literal(agent)};
    SELECT 'run', hex(r.run_id), r.open, hex(r.outline), hex(r.payload)
    FROM ckpt_agents AS a JOIN ckpt_runs AS r ON r.agent = a.key
    WHERE a.agent_id = ${literal(agent)} ORDER BY r.number`)
  const runs = rows('run').map(([name, open, ...parts]) => [textOf(name), Number(open), parts.map(textOf)])
  return {
    active: rows('agent').map(([active]) => textOf(active))[0] ?? '',
    open: runs.filter(([, open]) => open).map(([name]) => name),
    runs: runs.map(([name, , parts]) => [
      name, Object.assign({}, ...parts.map(part => object(Buffer.from(part), 'a run')))
    ])
  }
}

function dueTimesInSqlite (path) {
  const rows = query(path, "SELECT 'due', hex(agent_id), due_at FROM ckpt_watchdog")
  return rows('due').map(([name, dueAt]) => [textOf(name), Number(dueAt)])
}

// -- Redis --------------------------------------------------------------------------------------------

class Connection {
  #buffer = Buffer.alloc(0)
  #waiting = []

  constructor (url) {
    const { hostname, port } = new URL(url)
    this.socket = connect(Number(port || 6379), hostname)
    this.socket.on('data', data => { this.#buffer = Buffer.concat([this.#buffer, data]); this.#answer() })
    this.socket.on('error', error => this.#waiting.forEach(({ reject }) => reject(error)))
  }

  send (...words) {
    const parts = words.map(word => Buffer.from(String(word)))
    const bulk = parts.flatMap(part => [Buffer.from(`$${part.length}\r\n`), part, Buffer.from('\r\n')])
    this.socket.write(Buffer.concat([Buffer.from(`*${parts.length}\r\n`), ...bulk]))
    return new Promise((resolve, reject) => this.#waiting.push({ resolve, reject }))
  }

  #answer () {
    for (let reply; this.#waiting.length && (reply = this.#parse(0)); ) {
      this.#buffer = this.#buffer.subarray(reply.end)
      const { resolve, reject } = this.#waiting.shift()
      reply.value instanceof Error ? reject(reply.value) : resolve(reply.value)
    }
  }

  /** One reply and where it ends; null if it has not arrived whole. */
  #parse (start) {
    const stop = this.#buffer.indexOf('\r\n', start)
    if (stop < 0) return null
    const kind = String.fromCharCode(this.#buffer[start])
    const text = this.#buffer.toString('utf8', start + 1, stop)
    let end = stop + 2
    if (kind === '+') return { value: text, end }
    if (kind === '-') return { value: new Error(text), end }
    if (kind === ':') return { value: Number(text), end }
    if (Number(text) < 0) return { value: null, end }
    if (kind === '$') {
      const stop = end + Number(text)
      return this.#buffer.length < stop + 2 ? null : { value: this.#buffer.subarray(end, stop), end: stop + 2 }
    }
    const value = []
    for (let number = Number(text); number > 0; number--) {
      const item = this.#parse(end)
      if (!item) return null
      value.push(item.value)
      end = item.end
    }
    return { value, end }
  }
}

/** Do something with a connection to the server. */
async function connected (url, action) {
  const server = new Connection(url)
  try {
    await server.send('SELECT', new URL(url).pathname.slice(1) || 0)
    return await action(server)
  } finally {
    server.socket.destroy()
  }
}

const fromRedis = (url, agent) => connected(url, async server => {
  for (;;) {
    const found = await oneView(server, agent)
    if (found !== undefined) return found
  }
})

const turnsInRedis = (url, agent) => connected(url, async server => {
  const [hash, lines, places] = ['agent', 'runs', 'open'].map(key => `${PREFIX}{${hashTag(agent)}}:${key}`)
  await server.send('MULTI')
  await server.send('HGET', hash, 'active')
  await server.send('ZRANGE', places, 0, -1)
  await server.send('HGETALL', lines)
  const [active, open, flat] = await server.send('EXEC')
  const runs = []
  for (let i = 0; i < flat.length; i += 2) runs.push([flat[i].toString(), run(flat[i + 1])])
  runs.sort(([, a], [, b]) => a.number - b.number)
  return {
    active: active ? active.toString() : '',
    open: runs.map(([name]) => name).filter(name => open.map(String).includes(name)),
    runs: runs.map(([name, { facts }]) => [name, facts])
  }
})

function usageIn (word) {
  const names = ['input_tokens', 'output_tokens', 'cached_tokens', 'cost']
  return Object.fromEntries(word.split(';').map(each => {
    const [model, counts] = each.split('=')
    const pairs = counts.split(',').map((count, n) => [names[n], count])
    const known = pairs.filter(([, count]) => count !== '' && count !== '0')
    return [decodeURIComponent(model), Object.fromEntries(known.map(([name, count]) => [name, Number(count)]))]
  }))
}

function run (line) {
  const words = fields(line, 11)
  const [number, usage, status, delivered, attempts, stalled, progress, delivery, trace, passed, expires, rest] = words
  const text = word => word === '-' ? '' : decodeURIComponent(word)
  const front = {
    ...(usage === '-' ? {} : { usage: usageIn(usage) }),
    status,
    delivered: delivered === '1',
    attempts: Number(attempts),
    stalled: Number(stalled),
    progress: text(progress),
    delivery: text(delivery),
    passed_over: passed === '1',
    expires_at: expires === '-' ? null : isoOf(Number(expires)),
    ...(trace === '-' ? {} : { trace: text(trace) })
  }
  return { number: Number(number), facts: { ...front, ...object(rest, 'a run') } }
}

/** A time as the other stores write it: with microseconds only if there are any. */
function isoOf (microseconds) {
  const whole = new Date(Math.floor(microseconds / 1e6) * 1000).toISOString().replace('.000Z', '')
  const part = microseconds % 1e6
  return `${whole}${part ? '.' + String(part).padStart(6, '0') : ''}Z`
}

const dueTimesInRedis = url => connected(url, async server => {
  const found = []
  for (const part of [0, 1, 2, 3]) {
    const flat = await server.send('ZRANGEBYSCORE', `${PREFIX}watchdog:${part}`, '-inf', '+inf', 'WITHSCORES')
    for (let i = 0; i < flat.length; i += 2) found.push([flat[i].toString(), Number(flat[i + 1])])
  }
  return found
})

/** The checkpoint; null if there is none; undefined if somebody wrote meanwhile. */
async function oneView (server, agent) {
  const [hash, log] = ['agent', 'log'].map(key => `${PREFIX}{${hashTag(agent)}}:${key}`)
  await server.send('WATCH', hash, log)
  const [tip, first] = await server.send('HMGET', hash, 'tip', 'first')
  const space = tip ? tip.indexOf(0x20) : -1
  if (space < 0) {
    if (await server.send('EXISTS', log)) throw new Damaged('a log, and no checkpoint is the latest')
    return null
  }
  const field = tip.toString('utf8', space + 1)
  const line = await server.send('HGET', hash, field)
  const record = line && parsed(line)
  const spans = record ? record.spans.map(span => ({ ...span, from: span.start - Number(first ?? 0) })) : []
  await server.send('MULTI')
  const there = spans.filter(({ from }) => from >= 0)
  for (const { from, count } of there) await server.send('LRANGE', log, from, from + count - 1)
  const texts = await server.send('EXEC')
  if (texts === null) return undefined
  if (!record) throw new Damaged('the record of the latest checkpoint is missing')
  const lines = new Map()
  there.forEach(({ start }, i) => texts[i].forEach((line, k) => lines.set(start + k, line)))
  return written(agent, field.slice(2), record, offset => lines.get(offset))
}

// -- main ---------------------------------------------------------------------------------------------

const READERS = {
  checkpoint: { file: fromFiles, redis: fromRedis, sqlite: fromSqlite },
  turns: { file: turnsInFiles, redis: turnsInRedis, sqlite: turnsInSqlite },
  due_times: { file: dueTimesInFiles, redis: dueTimesInRedis, sqlite: dueTimesInSqlite }
}

async function answer ([kind, where, what, agent]) {
  try {
    let found = await READERS[what][kind](where, agent)
    if (what !== 'checkpoint') found = JSON.stringify(found)
    return found ? [0, Buffer.from(found).toString('base64')] : [3, '']
  } catch (error) {
    const isExpected = error instanceof Damaged || error instanceof TooNew
    return [error instanceof TooNew ? 2 : 1, isExpected ? error.message : error.stack]
  }
}

for await (const line of createInterface({ input: process.stdin })) {
  process.stdout.write(`${JSON.stringify(await answer(JSON.parse(line)))}\n`)
}
