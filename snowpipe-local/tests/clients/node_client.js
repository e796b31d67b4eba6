// What an application does with Node's snowflake-sdk, against the service that the environment names.
// Arguments: a folder of its own. Prints one JSON object.
const fs = require("fs");
const path = require("path");
const snowflake = require("snowflake-sdk");

const folder = process.argv[2];
const env = process.env;
snowflake.configure({ logLevel: "OFF", ocspFailOpen: true, disableOCSPChecks: true });

const connection = snowflake.createConnection({
  accessUrl: env.SNOWPIPE_LOCAL_URL,
  account: env.SNOWPIPE_LOCAL_ACCOUNT,
  username: env.SNOWPIPE_LOCAL_USER,
  authenticator: "SNOWFLAKE_JWT",
  privateKey: fs.readFileSync(env.SNOWPIPE_LOCAL_PRIVATE_KEY_FILE, "utf8"),
  database: "LOCAL",
  schema: "PUBLIC",
});

function run(sqlText, options = {}) {
  return new Promise((resolve, reject) =>
    connection.execute({
      sqlText,
      ...options,
      complete: (error, _statement, rows) => (error ? reject(error) : resolve(rows)),
    }),
  );
}

async function main() {
  await connection.connectAsync();
  const found = {};
  await run("CREATE OR REPLACE TABLE node_rows (id INT, name VARCHAR, at TIMESTAMP_NTZ, price NUMBER(9, 2))");
  await run("INSERT INTO node_rows VALUES (?, ?, ?, ?)", { binds: [1, "one", "2026-01-02 03:04:05.678", 1.25] });
  await run("INSERT INTO node_rows (id, name) VALUES (?, ?)", { binds: [[2, "two"], [3, null]] });
  const rows = await run("SELECT id, name, at, price FROM node_rows ORDER BY id");
  found.rows = rows.map((row) => [row.ID, row.NAME, row.AT && row.AT.toISOString(), row.PRICE]);
  found.several = await run("SELECT 1; SELECT 2", { parameters: { MULTI_STATEMENT_COUNT: 0 } });

  const many = await run("SELECT seq4() AS n, 'row' AS t FROM TABLE(GENERATOR(ROWCOUNT => 250000)) ORDER BY 1");
  found.many = [many.length, many.every((row, at) => row.N === at && row.T === "row")];

  fs.writeFileSync(path.join(folder, "more.csv"), "4,four\n5,five\n");
  await run("CREATE OR REPLACE STAGE node_files");
  const put = await run(`PUT 'file://${folder}/more.csv' @node_files/in AUTO_COMPRESS = TRUE`);
  found.put = put.map((row) => [row.target, row.status]);
  const copied = await run("COPY INTO node_rows (id, name) FROM @node_files/in FILE_FORMAT = (TYPE = CSV)");
  found.copied = copied.map((row) => [row.status, row.rows_loaded]);
  const got = await run(`GET @node_files/in 'file://${folder}/got/'`);
  found.got = got.map((row) => [row.file, row.status]);
  await connection.destroy(() => {});
  console.log(JSON.stringify(found));
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
