// What an application does with Go's gosnowflake, against the service that the environment names.
// Argument: a folder of its own. Prints one JSON object.
package main

import (
	"context"
	"crypto/rsa"
	"crypto/x509"
	"database/sql"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"log"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"time"

	sf "github.com/snowflakedb/gosnowflake"
)

func privateKey() *rsa.PrivateKey {
	text, err := os.ReadFile(os.Getenv("SNOWPIPE_LOCAL_PRIVATE_KEY_FILE"))
	check(err)
	block, _ := pem.Decode(text)
	if block == nil {
		log.Fatal("the private key is no PEM")
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	check(err)
	return key.(*rsa.PrivateKey)
}

func check(err error) {
	if err != nil {
		log.Output(2, err.Error())
		os.Exit(1)
	}
}

func open() *sql.DB {
	address, err := url.Parse(os.Getenv("SNOWPIPE_LOCAL_URL"))
	check(err)
	port, err := strconv.Atoi(address.Port())
	check(err)
	config := sf.Config{
		Account:           os.Getenv("SNOWPIPE_LOCAL_ACCOUNT"),
		User:              os.Getenv("SNOWPIPE_LOCAL_USER"),
		Protocol:          address.Scheme,
		Host:              address.Hostname(),
		Port:              port,
		Authenticator:     sf.AuthTypeJwt,
		PrivateKey:        privateKey(),
		Database:          "LOCAL",
		Schema:            "PUBLIC",
		DisableOCSPChecks: true,
	}
	return sql.OpenDB(sf.NewConnector(sf.SnowflakeDriver{}, config))
}

func rows(ctx context.Context, db *sql.DB, statement string, columns int, binds ...any) [][]any {
	found, err := db.QueryContext(ctx, statement, binds...)
	check(err)
	defer found.Close()
	return read(found, columns)
}

// The first columns of the current result; 0 for all.
func read(found *sql.Rows, columns int) [][]any {
	names, err := found.Columns()
	check(err)
	if columns == 0 {
		columns = len(names)
	}
	all := [][]any{}
	for found.Next() {
		values := make([]any, len(names))
		targets := make([]any, len(names))
		for i := range values {
			targets[i] = &values[i]
		}
		check(found.Scan(targets...))
		for i, value := range values {
			if at, is := value.(time.Time); is {
				values[i] = at.Format(time.RFC3339Nano)
			}
		}
		all = append(all, values[:columns])
	}
	check(found.Err())
	return all
}

func main() {
	log.SetFlags(log.Lshortfile)
	folder := os.Args[1]
	ctx := context.Background()
	db := open()
	defer db.Close()
	result := map[string]any{}

	exec := func(statement string, binds ...any) sql.Result {
		done, err := db.ExecContext(ctx, statement, binds...)
		check(err)
		return done
	}

	exec("CREATE OR REPLACE TABLE go_rows (id INT, name VARCHAR, at TIMESTAMP_NTZ, price NUMBER(9, 2))")
	at := time.Date(2026, 1, 2, 3, 4, 5, 678_000_000, time.UTC)
	exec("INSERT INTO go_rows VALUES (?, ?, ?, ?)", 1, "one", sf.DataTypeTimestampNtz, at, 1.25)
	ids, names := []int{2, 3}, []string{"two", "three"}
	inserted, err := exec("INSERT INTO go_rows (id, name) VALUES (?, ?)", sf.Array(&ids), sf.Array(&names)).RowsAffected()
	check(err)
	result["inserted"] = inserted
	result["rows"] = rows(ctx, db, "SELECT id, name, at, price FROM go_rows WHERE id <= ? ORDER BY id", 0, 2)

	transaction, err := db.BeginTx(ctx, nil)
	check(err)
	_, err = transaction.ExecContext(ctx, "DELETE FROM go_rows")
	check(err)
	check(transaction.Rollback())
	result["kept"] = rows(ctx, db, "SELECT COUNT(*) FROM go_rows", 0)

	several, err := sf.WithMultiStatement(ctx, 2)
	check(err)
	found, err := db.QueryContext(several, "SELECT 1; SELECT 2")
	check(err)
	results := [][][]any{read(found, 0)}
	for found.NextResultSet() {
		results = append(results, read(found, 0))
	}
	check(found.Close())
	result["several"] = results

	many, err := db.QueryContext(ctx, "SELECT seq4() FROM TABLE(GENERATOR(ROWCOUNT => 250000)) ORDER BY 1")
	check(err)
	count := 0
	for many.Next() {
		var number int
		check(many.Scan(&number))
		if number != count {
			log.Fatalf("row %d is %d", count, number)
		}
		count++
	}
	check(many.Err())
	result["many"] = count

	more := filepath.Join(folder, "more.csv")
	check(os.WriteFile(more, []byte("4,four\n5,five\n"), 0o600))
	exec("CREATE OR REPLACE STAGE go_files")
	moved := rows(ctx, db, fmt.Sprintf("PUT 'file://%s' @go_files/in AUTO_COMPRESS = TRUE", more), 0)
	result["put"] = [][]any{{moved[0][1], moved[0][6]}}
	copied := rows(ctx, db, "COPY INTO go_rows (id, name) FROM @go_files/in FILE_FORMAT = (TYPE = CSV)", 4)
	result["copied"] = copied
	moved = rows(ctx, db, fmt.Sprintf("GET @go_files/in 'file://%s/got/'", folder), 0)
	result["got"] = [][]any{{moved[0][0], moved[0][2]}}

	_, err = db.ExecContext(ctx, "SELECT missing FROM go_rows")
	var refused *sf.SnowflakeError
	if !errors.As(err, &refused) {
		log.Fatalf("no error of Snowflake: %v", err)
	}
	result["refused"] = []any{refused.Number, refused.SQLState}
	check(json.NewEncoder(os.Stdout).Encode(result))
}
