<%@ page contentType="text/html; charset=UTF-8" %><% session.invalidate(); %><!doctype html><title>Shop</title><p>Goodbye.
